"""Summary lines of stages and runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.flows.cli.main import app
from penstock.flows.cli.runs import describe_run, shown_runs
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
from penstock.storage.runs.run import RunFolder, list_runs
from penstock.storage.runs.timings import PipelineCounts
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.history import read_history
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.replay import build_replay_config

from ...support.stored.committed_run import CommittedRun

GOLDEN = str(Path(__file__).parents[2] / "golden")
"""Store of a run, and of a replay of it."""


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
    rows = [stage_row(commit, None)]
    for config, line, steps in zip((replay, trained), lines, ("stored steps", "env steps"), strict=True):
        card = summary_markdown(config, commit, rows, "", None)
        assert line in card
        assert f"| stage | {steps} |" in card
    drawn = curve_svg("cloned", [], [(100.0, 3.0)], replay=True)
    assert "stored steps learned from" in drawn
    assert "environment steps" not in drawn + curve_markdown("cloned", [], [(100.0, 3.0)], replay=True)


def test_what_reads_a_stored_replay_says_that_its_steps_were_stored():
    """`penstock show`, `Run` and a report's facts see by its settings that the run is a replay; JSON keeps its keys."""
    steps = "192 stored steps learned from"
    described = {name: describe_run(GOLDEN, name) for name in ("run", "replayed")}
    assert steps in described["replayed"]["outcome"]
    assert steps in penstock.Run("replayed", store=GOLDEN).outcome
    assert facts(read_history(RunFolder(open_store(GOLDEN), "replayed")))["stored steps learned from"] == "192"
    for name, replay in (("run", False), ("replayed", True)):
        assert described[name]["replay"] is replay
        assert described[name]["stages"][-1]["env steps"] > 0
        lines = CliRunner().invoke(app, ["show", name, "--store", GOLDEN]).stdout.splitlines()
        (header,) = (lines[at - 1].split()[0] for at, line in enumerate(lines) if line.startswith("stage "))
        assert header == ("stored" if replay else "env")


def test_listed_runs_have_environment_steps_and_replays_stored_ones():
    """Each in a column of its own, which is there only if a run has it; JSON has `env_steps` and `replay` of each."""
    found = list_runs(GOLDEN)
    assert {run.name: (run.env_steps, run.replay) for run in found} == {"replayed": (192, True), "run": (384, False)}
    rows = {str(row["name"]): row for row in shown_runs(found)}
    assert {name: (row["env steps"], row["stored steps"]) for name, row in rows.items()} == {
        "replayed": (None, 192),
        "run": (384, None),
    }
    ((trained,), (replayed,)) = (shown_runs([run for run in found if run.replay is kind]) for kind in (False, True))
    assert list(trained)[3:5] == ["env steps", "evaluation_return"]
    assert list(replayed)[3:5] == ["stored steps", "evaluation_return"]
    assert CliRunner().invoke(app, ["runs", "--store", GOLDEN]).stdout.split()[:3] == ["env", "stored", "evaluation"]


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
