"""Somebody who follows a run does not wait for ever for one that nobody drives."""

import pytest

from penstock.storage.errors import RunIdleError
from penstock.tasks.analysis.evaluation import commits_to_evaluate

from ..conftest import MakeContext


def test_following_a_run_that_commits_nothing_ends(make_context: MakeContext):
    """After `idle_seconds`, with what was committed, and what to do."""
    run = make_context().run
    with pytest.raises(
        RunIdleError, match=r"run 'small' has committed nothing for 0\.5 s .*penstock resume small.*idle"
    ):
        next(commits_to_evaluate(run, 1, 0, 0.5))
