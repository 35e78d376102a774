"""Summary lines of stages and runs."""

from dataclasses import replace

import pytest

from penstock.flows.display.summary import outcome_line, round_return, stage_row
from penstock.storage.runs.timings import PipelineCounts

from ...support.stored.committed_run import CommittedRun


@pytest.mark.parametrize(
    ("value", "rounded"), [(493.5499, 493.5), (-80.44, -80.4), (10.04, 10.0), (-1.11298, -1.113), (9.87654, 9.877)]
)
def test_small_returns_keep_the_digits_that_matter(value: float, rounded: float):
    """Costs of placements differ in the second decimal, returns of CartPole in whole numbers."""
    assert round_return(value) == rounded
    evaluation = {"mean_return": value, "episodes": 3}
    result = {"evaluation": evaluation, "env_steps": 1000, "stages": 2, "finished": None}
    assert outcome_line(result) == (
        f"mean return {rounded} over 3 episodes after 1,000 environment steps, 2 stages (not finished)"
    )


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
