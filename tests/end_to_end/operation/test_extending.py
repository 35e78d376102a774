"""A finished run is continued, whatever interrupts it, to what a run of that length from the start has learned."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.storage.runs.continuing.extensions import extension_name

from ...support.processes.commands import wait_until
from ..conftest import BRIEF, Settings

if TYPE_CHECKING:
    from ...support.stored.stored_run import StoredRun
    from ..conftest import Bench, References

LONGER = replace(BRIEF, stages=4)


def learned(run: StoredRun) -> dict[str, bytes]:
    """Return all that was acted and learned; commits, which also say why a run ended, as far as they agree."""
    content = run.content()
    commits = [{**commit, "parent": "", "finished": commit["finished"] and ""} for commit in run.commits()]
    content = {name: data for name, data in content.items() if not name.startswith("commits/")}
    return {**content, **{str(each["stage"]): json.dumps({**each, "finished": ""}).encode() for each in commits}}


def copied(bench: Bench, references: References, name: str) -> StoredRun:
    source = references.run(BRIEF)
    shutil.copytree(Path(source.url) / source.name, Path(bench.store) / name)
    return bench.run(name)


def extend(bench: Bench, name: str, *options: str, stages: int = LONGER.stages):
    where = ("--store", bench.store, "--scheduler", bench.scheduler)
    return bench.penstock("extend", name, "--max-stages", str(stages), *where, *options)


@pytest.mark.slow
def test_an_extended_run_learns_what_a_longer_one_does(bench: Bench, references: References):
    """Every shard, state, snapshot, checkpoint, metric and evaluation has the same bytes; so again and in a fork."""
    run = copied(bench, references, "extended")
    before = run.content()
    extend(bench, "extended").succeed()
    assert learned(run) == learned(references.run(LONGER))
    assert {name: run.content()[name] for name in before if name.startswith("commits/")} == {
        name: data for name, data in before.items() if name.startswith("commits/")
    }, "the log is never changed"
    where = ("--store", bench.store)
    bench.penstock("verify", "extended", *where).succeed()
    shown = bench.penstock("show", "extended", *where).succeed()
    assert "max_stages 4 done" in shown
    assert "extended after stage 1 to max_stages 4" in " ".join(shown.split())
    content = run.content()
    again = extend(bench, "extended")
    again.succeed()
    assert "finished already" in again.errors
    assert run.content() == content
    bench.penstock("fork", "extended", "forked", "--from-stage", "1", *where).succeed()
    bench.resume("forked").succeed()
    assert bench.run("forked").commits() == run.commits()


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds",
    [(BRIEF.all_rounds + 5,), (BRIEF.all_rounds, LONGER.all_rounds - 4)],
    ids=["once", "twice"],
)
def test_a_killed_extension_is_resumed(bench: Bench, references: References, rounds: tuple[int, ...]):
    """Killed once it is recorded, and anywhere later; the same command or a resume continues to the same bytes."""
    run = copied(bench, references, "killed")
    flow = extend(bench, "killed")
    wait_until(lambda: run.store.exists(extension_name(1)) or not flow.running, "the extension")
    flow.kill()
    for number, round_ in enumerate(rounds):
        flow = bench.resume("killed") if number % 2 else extend(bench, "killed")
        run.wait_for_round(round_, flow)
        flow.kill()
    bench.resume("killed").succeed()
    assert learned(run) == learned(references.run(LONGER))
    bench.penstock("verify", "killed", "--store", bench.store).succeed()


@pytest.mark.slow
def test_two_extensions_at_once_are_one(bench: Bench, references: References):
    """One of two commands with other limits drives the run; the other is refused, or extends what the first ended."""
    run = copied(bench, references, "twice")
    flows = [extend(bench, "twice", stages=stages) for stages in (3, LONGER.stages)]
    ended = [flow.wait() for flow in flows]
    assert 0 in ended, [flow.output for flow in flows]
    assert not any("Traceback" in flow.output for flow in flows)
    records = [json.loads(run.store.read(name)) for name in run.store.list("extensions/")]
    assert len(records) == ended.count(0)
    assert len(run.commits()) == max(record["max_stages"] for record in records)
    bench.penstock("verify", "twice", "--store", bench.store).succeed()


@pytest.mark.slow
def test_a_window_and_evaluations_are_continued(bench: Bench):
    """An off-policy run continues with its window; the end's own evaluation changes nothing that is learned."""
    short = Settings(stages=1, rounds=6, tiles=2, act_tasks=1)
    options = (
        "--algorithm.name", "dqn", "--algorithm.hidden", "[8]", "--algorithm.minibatches", "2",
        "--algorithm.window-rows", "1024", "--algorithm.warm-up-rows", "256", "--algorithm.minibatch-rows", "16",
        "--evaluate-every-stages", "3",
    )  # fmt: skip
    for name, stages in (("short", 1), ("long", 3)):
        preset = bench.preset(replace(short, stages=stages))
        text = Path(preset).read_text().replace("epochs = 1\n", "")
        Path(preset).write_text(text.replace("hidden = [8]\n", "").replace("minibatches = 2\n", ""))
        where = ("--store", bench.store, "--scheduler", bench.scheduler)
        bench.penstock("train", preset, "--name", name, *where, *options).succeed()
    extend(bench, "short", stages=3).succeed()
    short_run, long_run = bench.run("short"), bench.run("long")
    for kind in ("shards", "states", "snapshots", "checkpoint", "metrics"):
        assert [one[kind] for one in short_run.commits()] == [one[kind] for one in long_run.commits()], kind
    assert [one["evaluation"] is not None for one in short_run.commits()] == [True, False, True]
    assert [one["evaluation"] is not None for one in long_run.commits()] == [False, False, True]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], ["--max-stages, --target-return or both"]),
        (["--max-stages", "1"], ["has the limit 2"]),
        (["--max-stages", "2"], ["max_stages 2 done"]),
        (["--target-return", "high"], ["expected a number, or none"]),
    ],
    ids=" ".join,
)
def test_mistakes_are_refused(bench: Bench, references: References, options: list[str], said: list[str]):
    """Nothing is recorded."""
    run = references.run(BRIEF)
    bench.penstock("extend", run.name, *options, "--store", run.url).refuse(*said)
    assert run.store.list("extensions/") == []
