"""Summary lines of stages and runs."""

from dataclasses import replace

import pytest

import penstock
from penstock.flows.cli.runs import describe_run
from penstock.flows.display.curve import curve_markdown, curve_svg
from penstock.flows.display.summary import (
    flow_result,
    outcome,
    outcome_line,
    round_return,
    stage_row,
    summary_markdown,
)
from penstock.flows.report.facts import facts
from penstock.storage.runs.timings import PipelineCounts
from penstock.tasks.analysis.history import read_history
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.replay import build_replay_config

from ...support.stored.committed_run import CommittedRun


@pytest.mark.parametrize(
    ("value", "rounded"), [(493.5499, 493.5), (-80.44, -80.4), (10.04, 10.0), (-1.11298, -1.113), (9.87654, 9.877)]
)
def test_small_returns_keep_the_digits_that_matter(value: float, rounded: float):
    """Costs of placements differ in the second decimal, returns of CartPole in whole numbers."""
    assert round_return(value) == rounded
    evaluation = {"mean_return": value, "episodes": 3}
    result = {"evaluation": evaluation, "env_steps": 1000, "replay": False, "stages": 2, "finished": None}
    assert outcome_line(result) == (
        f"mean return {rounded} over 3 episodes after 1,000 environment steps, 2 stages (not finished)"
    )


def test_a_replay_says_that_its_steps_were_stored(tmp_path):
    """Nothing acts in it: its line, its card and its curve count stored steps, and its result says what it counts."""
    ((commit, _),) = CommittedRun(tmp_path).commit(3.0)
    replay = build_replay_config({"name": "cloned", "source": {"runs": ["small"]}})
    trained = build_config({"name": "small"})
    results = flow_result(replay, commit, 1.0), flow_result(trained, commit, 1.0)
    assert [(result["env_steps"], result["replay"]) for result in results] == [(100, True), (100, False)]
    lines = [
        f"mean return 3.0 over 4 episodes after 100 {steps}, 1 stage (not finished)"
        for steps in ("stored steps learned from", "environment steps")
    ]
    assert [outcome_line(result) for result in results] == lines
    assert [outcome(commit, replay=replay) for replay in (True, False)] == lines
    for config, line in zip((replay, trained), lines, strict=True):
        assert line in summary_markdown(config, commit, [], "", None)
    drawn = curve_svg("cloned", [], [(100.0, 3.0)], replay=True)
    assert "stored steps learned from" in drawn
    assert "environment steps" not in drawn + curve_markdown("cloned", [], [(100.0, 3.0)], replay=True)


def test_what_reads_a_stored_replay_says_that_its_steps_were_stored(tmp_path):
    """`penstock show`, `Run` and a report's facts see by its settings that the run is a replay."""
    cloned = CommittedRun(tmp_path, "cloned")
    cloned.commit(3.0)
    description = cloned.folder.load()
    config = build_replay_config({"name": "cloned", "source": {"runs": ["small"]}}).model_dump(mode="json")
    cloned.folder.store.delete(["run.json"])
    cloned.folder.create({**description, "config": config})
    store, steps = str(tmp_path / "runs"), "100 stored steps learned from"
    assert steps in describe_run(store, "cloned")["outcome"]
    assert steps in penstock.Run("cloned", store=store).outcome
    assert facts(read_history(cloned.folder))["stored steps learned from"] == "100"


def test_a_stages_row_has_what_all_learners_did(tmp_path):
    """Their retries and hedges together, the share of the waiting of all, and the slowest's seconds."""
    ((commit, timings),) = CommittedRun(tmp_path).commit(3.0)
    (learn,) = timings.learn
    counts = (
        PipelineCounts(retries=0, hedges=1, queue_depth=4.0),
        PipelineCounts(retries=7, hedges=2, queue_depth=1.0),
    )
    learners = (
        replace(learn, learn_seconds=9.0, wait_seconds=1.0, pipeline=counts[0]),
        replace(learn, learn_seconds=1.0, wait_seconds=9.0, pipeline=counts[1]),
    )
    row = stage_row(commit, replace(timings, learn=learners))
    shown = {name: row[name] for name in ("wait share", "retries", "hedges", "queue depth", "learn seconds")}
    assert shown == {"wait share": 0.5, "retries": 7, "hedges": 3, "queue depth": 2.5, "learn seconds": 9.0}


def test_a_stage_whose_timings_are_lost_keeps_what_its_commit_says(tmp_path):
    """Timings are not needed to go on, and a kill after the commit loses them."""
    ((commit, timings),) = CommittedRun(tmp_path).commit(3.0)
    row, whole = stage_row(commit, None), stage_row(commit, timings)
    assert (row["return"], row["evaluation"], row["steps/s"]) == (0.0, 3.0, None)
    assert all(value == whole[name] for name, value in row.items() if value is not None)
