"""Runs with a quorum below 1 learn without stragglers, and learn from the same rows again after a kill."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import pytest

from penstock.flows.cli.runs import describe_run
from penstock.storage.refs import ShardRef, parse_shard_name
from penstock.storage.runs.gc import collect
from penstock.storage.runs.round_choices import Choice, stored_choices
from penstock.storage.shards.reader import open_shard

from ...support.processes.commands import wait_until
from ...support.stored.stored_run import StoredRun
from ..conftest import Settings

SETTINGS = Settings(stages=2, rounds=24, tiles=4, act_tasks=4, lag=1)
ROUNDS = SETTINGS.rounds
QUORUM = 0.5
MADE_AGAIN = ("commits", "checkpoints", "snapshots", "timings", "latest.json", "lease.json")


def choices_of(run: StoredRun, stage: int) -> dict[int, Choice]:
    named = stored_choices(run.store, stage, 0)
    return {round_: Choice.decode(run.store.read(name), name) for round_, name in named.items()}


@pytest.fixture(params=["a folder", pytest.param("S3", marks=pytest.mark.slow)])
def store(request, bench, s3_server, s3_url) -> str:
    """Return the store of the run with the straggler, a folder or on S3."""
    if request.param == "a folder":
        return str(bench.store)
    bench.environment = {**bench.environment, **s3_server.environment}
    return str(s3_url)


def start_with_straggler(bench, cluster, store) -> tuple[StoredRun, Any, int, int]:
    """Start a run and stop the process of act-3 well before round 16; return run, flow, and pids of both members.

    Where this process was too slow to stop it in time, or a tile of the other process had skipped a round that waits
    for the stopped one, the run finishes and another one is started.
    """
    for number in itertools.count():
        run = StoredRun(store, f"late-{number}")
        with cluster.members.learners_held():
            flow = bench.train(run.name, SETTINGS, "--quorum", str(QUORUM), store=store)
            pids = [cluster.members.pid_of(f"act-{tile}", run.name, flow) for tile in range(SETTINGS.tiles)]
            learner = cluster.members.pid_of("learn-0", run.name, flow)
        straggler = pids[3]
        run.wait_for_round(0, flow)
        os.kill(straggler, signal.SIGSTOP)
        others = [tile for tile, pid in enumerate(pids) if pid != straggler]
        if not run.commits() and max(stored_choices(run.store, 0, 0), default=0) < 12 and go_on_alone(run, others):
            return run, flow, straggler, learner
        os.kill(straggler, signal.SIGCONT)
        flow.succeed()
    raise AssertionError


def go_on_alone(run: StoredRun, tiles: list[int]) -> bool:
    """Wait until a round is learned from these tiles alone, and return True; False if they have skipped too much.

    A late tile skips to the newest round that it may act. Where that leaves out a round that has too few shards yet,
    the round waits for tiles that are stopped.
    """
    outcome: list[bool] = []

    def is_known() -> bool:
        chosen, rounds = max(stored_choices(run.store, 0, 0), default=-1), [set[int]() for _ in range(SETTINGS.tiles)]
        for round_, tile in run.stored_rounds():
            rounds[tile].add(round_)
        stopped = set[int]().union(*(its for tile, its in enumerate(rounds) if tile not in tiles))
        to_come = sum(max(rounds[tile], default=-1) <= chosen for tile in tiles)
        if chosen > max(stopped, default=-1):
            outcome.append(True)
        elif to_come + sum(chosen + 1 in its for its in rounds) < QUORUM * SETTINGS.tiles:
            outcome.append(False)
        return bool(outcome)

    wait_until(is_known, f"a round of tiles {tiles} alone")
    return outcome[0]


@pytest.mark.slow
def test_rounds_without_stragglers_are_learned_again_after_a_kill(bench, cluster, store):
    """One of two act processes is stopped, with two of four tiles: rounds are learned from the other two.

    The learner is killed meanwhile, after choices and before the commit. Each commit names what was chosen. A run that
    has these shards and choices, and nothing else, ends with the same commits. No row is older than the lag allows.
    """
    run, flow, straggler, learner = start_with_straggler(bench, cluster, store)
    try:
        wait_until(lambda: 16 in stored_choices(run.store, 0, 0), "a choice of round 16")
        os.kill(learner, signal.SIGKILL)
        assert not run.commits()
        wait_until(lambda: ROUNDS - 1 in stored_choices(run.store, 0, 0), "a choice of the stage's last round")
    finally:
        os.kill(straggler, signal.SIGCONT)
    said = flow.succeed()
    assert "misses" in said
    for stage, commit in enumerate(run.commits()):
        learned = {(ref["round"], ref["tile"]): ref["digest"] for ref in commit["shards"]}
        chosen = choices_of(run, stage)
        assert learned == {(r, tile): digest for r, one in chosen.items() for tile, digest in one.digests.items()}
        assert sorted(chosen) == list(range(ROUNDS * stage, ROUNDS * (stage + 1)))
        steps_before = run.commits()[0]["env_steps"] if stage else 0
        assert commit["env_steps"] - steps_before == sum(ref["rows"] for ref in commit["shards"])
        assert run.timings()[stage]["missed_shards"] == ROUNDS * SETTINGS.tiles - len(learned)
    assert len(choices_of(run, 0)[20].digests) == 2
    for name in run.store.list("shards/"):
        parsed = parse_shard_name(name)
        info = open_shard(run.store, ShardRef(name, parsed.digest, 0, parsed.round, parsed.tile, 0)).info
        assert info.round - 1 <= info.min_policy_version <= info.max_policy_version
    again = follow(bench, run)
    assert commits(again) == commits(run)
    missed = [row["missed shards"] for row in describe_run(run.url, run.name)["stages"]]
    assert missed == [timings["missed_shards"] for timings in run.timings()]
    collect(run.folder)
    assert {ref["name"] for commit in run.commits() for ref in commit["shards"]} == set(run.store.list("shards/"))
    assert not run.store.list("choices/")


def follow(bench, run: StoredRun) -> StoredRun:
    """Return another run that has the shards, states and choices of this one and has been resumed to its end."""
    again = StoredRun(run.url, "again")
    for name in run.store.list():
        if name.partition("/")[0] not in MADE_AGAIN:
            again.store.write(name, [run.store.read(name)])
    bench.resume("again", store=run.url).succeed()
    return again


def commits(run: StoredRun) -> list[bytes]:
    return [run.store.read(name) for name in run.store.list("commits/")]
