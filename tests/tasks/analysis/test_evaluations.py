"""An evaluation flow takes every commit when it follows, and the newest one when an event starts it."""

import json

import pytest

from penstock.storage.errors import ConfigError, RunIdleError, RunNotFoundError
from penstock.storage.runs.run import RunFolder
from penstock.tasks.analysis.evaluation import commits_to_evaluate, evaluate_commit, newest_to_evaluate
from penstock.tasks.analysis.tables import evaluation_table

from ..conftest import MakeContext
from ..inference.support import commit


def test_following_a_run_that_commits_nothing_ends(make_context: MakeContext):
    """After `idle_seconds`, with what was committed, and what to do."""
    run = make_context().run
    with pytest.raises(
        RunIdleError, match=r"run 'small' has committed nothing for 0\.5 s .*penstock resume small.*idle"
    ):
        next(commits_to_evaluate(run, 1, 0, 0.5))


def test_an_evaluation_that_falls_behind_takes_the_newest(make_context: MakeContext):
    """Versions between are left out and named; one that appears meanwhile is next; then there is nothing to do."""
    context = make_context()
    run = context.run
    assert list(newest_to_evaluate(run, 4, 0)) == []
    commit(context, None, None, None)
    found = newest_to_evaluate(run, 4, 0)
    newest, skipped = next(found)
    assert (newest.version, list(skipped)) == (3, [1, 2])
    run.store.write("evaluations/00000003-0-4.json", [b"{}"])
    commit(context, None, None, None, None, None, first=3)
    newest, skipped = next(found)
    assert (newest.version, list(skipped)) == (8, [4, 5, 6, 7])
    run.store.write("evaluations/00000008-0-4.json", [b"{}"])
    assert next(found, None) is None
    assert list(newest_to_evaluate(run, 4, 0)) == []
    assert next(newest_to_evaluate(run, 4, 1))[0].version == 8, "other seeds are another evaluation"
    run.store.delete([newest.snapshots[-1].name])
    assert list(newest_to_evaluate(run, 4, 1)) == [], "a removed snapshot can't be evaluated"


def test_a_run_that_is_not_there_is_named(make_context: MakeContext):
    """As everywhere."""
    with pytest.raises(RunNotFoundError, match="absent"):
        next(newest_to_evaluate(RunFolder(make_context().run.root, "absent"), 4, 0))


def test_a_key_that_no_table_can_hold_is_refused_and_read(make_context: MakeContext):
    """One that an earlier version has stored is null, and the other evaluations are there."""
    context = make_context()
    run = context.run
    commit(context, None)
    newest = run.log.newest()
    assert newest is not None
    with pytest.raises(ConfigError, match="key = 9223372036854775808: expected 0 to 9223372036854775807"):
        evaluate_commit(run, newest, 1, 1 << 63)
    for key in (1 << 63, 5):
        content = {"version": 1, "mean_return": 2.0, "episodes": 4, "seeds": key}
        run.store.write(f"evaluations/00000001-{key}-4.json", [json.dumps(content).encode()])
    table = evaluation_table(run, [newest])
    assert table["seeds"].to_pylist() == [None, 5]
