"""A run continues from an old commit, as another run or after damaged commits, to the bytes of an undisturbed one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ...support.stored.stored_run import assert_same, damage
from ..conftest import BRIEF


@pytest.mark.slow
def test_a_fork_ends_with_the_bytes_of_its_source(bench, references):
    """The same settings and commits give the same run, in another store as well."""
    source = references.run(BRIEF)
    bench.penstock(
        "fork", source.name, "forked", "--from-stage", "0", "--store", source.url, "--to", bench.store
    ).succeed()
    run = bench.run("forked")
    assert len(run.commits()) == 1
    bench.resume("forked").succeed()
    assert_same(run, references.content(BRIEF))
    for stage, said in ((str(BRIEF.stages - 1), "ended with that stage"), ("7", "stages 0 to 1")):
        options = ("--from-stage", stage, "--store", source.url, "--to", bench.store)
        bench.penstock("fork", source.name, "again", *options).refuse(said)
    assert not bench.run("again").folder.exists()


def test_a_run_with_a_damaged_checkpoint_is_resumed_from_the_stage_before(bench, references):
    """Its commit is given up, and made again; the checkpoint is named as what is damaged. An intact one is kept."""
    source = references.run(BRIEF)
    folder = Path(bench.store) / "torn"
    shutil.copytree(Path(source.url) / source.name, folder)
    run = bench.run("torn")
    bench.resume("torn", "--from-stage", "0").refuse("stage 1 is intact", "penstock fork torn")
    damaged = run.commits()[-1]["checkpoint"]["name"]
    damage(folder, damaged, "altered")
    said = bench.resume("torn", "--from-stage", "0")
    said.succeed()
    assert "commits/00000001.json was given up" in said.output
    assert f"'{damaged}' in" in said.output
    assert_same(run, references.content(BRIEF))
    moved = [name.rpartition("/")[2] for name in run.store.list("abandoned/")]
    assert [name for name in moved if name.count("-") < 2] == ["00000001.json", "record.json"]  # others: evaluations
