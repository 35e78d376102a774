"""A run's past is read from the objects of the wanted stages alone, and each stage's last driver counts."""

from __future__ import annotations

import json

import pytest

from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.timings import StageTimings, encode_timings, timings_name
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.history import newest_timings, read_history


@pytest.fixture
def run(tmp_path):
    """Return a run with timings of 130 stages, of which some had two drivers, and one whose timings are damaged."""
    run = RunFolder(open_store(tmp_path), "long")
    for stage in range(130):
        for generation in (1, 2) if stage % 3 else (1,):
            timings = StageTimings(stage=stage, started_at=0.0, stage_seconds=float(generation), act=(), learn=())
            run.store.write(timings_name(stage, generation), [encode_timings(timings)])
    run.store.write(timings_name(128, 9), [b"{"])
    return run


@pytest.mark.parametrize("wanted", [range(130), range(99, 102), [7], [0, 129], [128], [500], []], ids=str)
def test_wanted_stages_have_the_timings_of_their_last_driver(run, wanted):
    """Whatever the digits of their numbers have in common; damaged and missing ones are left out."""
    found = newest_timings(run, wanted)
    assert {stage: one.stage_seconds for stage, one in found.items()} == {
        stage: 2.0 if stage % 3 else 1.0 for stage in wanted if stage < 130 and stage != 128
    }


def test_the_last_evaluation_of_a_version_is_the_one_of_most_episodes(tmp_path):
    """A short one, in whichever file, does not take its place in curves."""
    run = RunFolder(open_store(tmp_path), "evaluated")
    run.create({"config": {}, "made_with": {}, "promise": ""})
    for name, version, mean_return, episodes in (("1", 1, 500.0, 100), ("9", 1, 104.0, 1), ("5", 2, 300.0, 100)):
        result = {"version": version, "mean_return": mean_return, "episodes": episodes}
        run.store.write(f"evaluations/{name}.json", [json.dumps(result).encode()])
    found = {one["version"]: one["mean_return"] for one in read_history(run).evaluations}
    assert found == {1: 500.0, 2: 300.0}


def test_attempts_are_the_files_of_stages(tmp_path):
    """Another program's file beside them is passed over."""
    run = RunFolder(open_store(tmp_path), "tried")
    run.create({"config": {}, "made_with": {}, "promise": ""})
    for name in ("00000003", "notes"):
        run.store.write(f"attempts/{name}.json", [b'{"attempt": 1, "reason": "x"}'])
    assert list(read_history(run).attempts) == [3]
