"""A run on a disk that loses its power again and again is resumed without help, and ends with the undisturbed bytes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ...support.stored.power_disk import NoDiskError, PowerDisk
from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

RUNS, CUTS = 4, 5
LONG = Settings(stages=2, rounds=300, tiles=2, act_tasks=1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    try:
        disk = PowerDisk(tmp_path)
    except NoDiskError as error:
        pytest.skip(str(error))
    yield disk
    disk.unmount()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, RUNS))])
def test_power_cuts_are_survived_without_help(bench, references, disk, seed, request):
    """At random moments of one stage, everything that was not synced is lost, and all processes end."""
    expected, chance, stage = references.content(LONG), random.Random(seed), seed % LONG.stages
    where = ("--store", str(disk.mounted / "runs"), "--lease-seconds", "3")
    request.addfinalizer(bench.close)  # before the disk is unmounted
    run = StoredRun(str(disk.mounted / "runs"), "cut")
    flow = bench.penstock("train", bench.preset(LONG), "--name", "cut", *where)
    round_ = LONG.rounds * stage + chance.randrange(20, 100)
    for _ in range(CUTS):
        run.wait_for_round(round_, flow)
        disk.cut()
        flow.kill_group()
        disk.unmount()
        disk.mount()
        assert len(run.commits()) == stage
        flow = bench.penstock("resume", "cut", *where)
        # Beyond all names that the cut has left, with or without content: so there was progress before the next.
        round_ = max([round_, *(stored for stored, _ in run.stored_rounds())]) + chance.randrange(1, 25)
    flow.succeed()
    assert_same(run, expected)
