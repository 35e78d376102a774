"""A finished run is extended to larger limits; whatever would change nothing, or break off, is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.errors import ConfigError, LeaseHeldError, RunFinishedError, RunNotFoundError
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.continuing.extensions import Limits, end_reason, list_extensions
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.run import RunFolder
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.extending import extend_run, with_extensions
from penstock.tasks.setup.planning.resolve import resolve

from ...inference.support import commit

if TYPE_CHECKING:
    from penstock.storage.runs.commit_schema import Commit

    from ...conftest import MakeContext


def finish(run: RunFolder, limits: Limits, mean_return: float = 50.0) -> Commit:
    """Take the newest commit off the log, and add it again as the one that ends the run."""
    from dataclasses import replace

    newest = run.log.newest()
    assert newest is not None
    evaluation = {"mean_return": mean_return, "episodes": 4, "version": newest.version}
    run.store.delete([f"commits/{newest.stage:08d}.json", "latest.json"])
    ended = replace(newest, evaluation=evaluation, finished=end_reason(limits, newest.stage, evaluation))
    assert ended.finished is not None
    run.log.append(ended)
    return ended


def to(**given: Any) -> Any:
    return lambda limits: limits._replace(**given)


def test_a_run_is_extended_again_and_again(make_context: MakeContext):
    """Each time from its newest end; the same command given again changes nothing, before and after it goes on."""
    context = make_context()
    run = context.run
    commit(context, None, None)
    ended = finish(run, Limits(2))
    assert extend_run(run, to(max_stages=3)) == Limits(3)
    assert extend_run(run, to(max_stages=3)) == Limits(3)
    assert list_extensions(run.store)[1].commit == commit_ref(ended).digest
    with pytest.raises(ConfigError, match="2 of 3 stages are committed"):
        extend_run(run, to(max_stages=9))
    config = with_extensions(run, context.config, 2)
    assert config.schedule.max_stages == 3
    assert with_extensions(run, context.config, 1) is context.config
    commit(context, None, first=2)
    finish(run, Limits(3))
    with pytest.raises(RunFinishedError, match="extended to these limits before"):
        extend_run(run, to(max_stages=3))
    assert extend_run(run, to(max_stages=9, target_return=60.0)) == Limits(9, 60.0)
    commit(context, None, first=3)
    assert extend_run(run, to(max_stages=9, target_return=60.0)) == Limits(9, 60.0)
    with pytest.raises(ConfigError, match="4 of 9 stages are committed"):
        extend_run(run, to(max_stages=9, target_return=None))
    finish(run, Limits(9, 60.0), 61.0)
    assert extend_run(run, to(target_return=None)) == Limits(9, None)
    assert sorted(list_extensions(run.store)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("limits", "given", "said"),
    [
        (Limits(2), {"max_stages": 1}, "--max-stages 1: run 'small' has the limit 2 and has committed 2 stages"),
        (Limits(2), {"max_stages": 2}, r"would end where it ended \(max_stages 2 done\)"),
        (Limits(2), {"target_return": 90.0}, "give --max-stages of more than 2"),
        (Limits(2), {"max_stages": 4, "target_return": 40.0}, "has the mean return 50, and the target is 40"),
        (Limits(9, 45.0), {"max_stages": 12}, "a higher --target-return as well, or none"),
    ],
)
def test_what_would_change_nothing_is_refused(make_context: MakeContext, limits: Limits, given: Any, said: str):
    """Nothing is recorded; the message says what would help."""
    context = make_context({"schedule": limits._asdict()})
    commit(context, None, None)
    finish(context.run, limits)
    with pytest.raises(ConfigError, match=said):
        extend_run(context.run, to(**given))
    assert list_extensions(context.run.store) == {}


def test_only_a_finished_run_that_nobody_drives_is_extended(make_context: MakeContext):
    """An unfinished one is to be resumed; one that is driven is left alone."""
    context = make_context()
    with pytest.raises(ConfigError, match=r"not finished: 0 of 2.*penstock resume small"):
        extend_run(context.run, to(max_stages=4))
    commit(context, None)
    with pytest.raises(ConfigError, match=r"not finished: 1 of 2.*penstock resume small"):
        extend_run(context.run, to(max_stages=4))
    commit(context, None, first=1)
    finish(context.run, Limits(2))
    with acquire(context.run.store, "another flow", 30.0), pytest.raises(LeaseHeldError):
        extend_run(context.run, to(max_stages=4))
    with pytest.raises(RunNotFoundError):
        extend_run(RunFolder(context.run.root, "absent"), to(max_stages=4))


def test_an_extended_run_is_resumed(make_context: MakeContext):
    """`resolve` refuses a finished run, with the command that continues it, and accepts an extended one."""
    context = make_context()
    commit(context, None, None)
    finish(context.run, Limits(2))
    config = build_config({**context.config.model_dump(mode="json"), "store": context.run.root.url})
    with pytest.raises(RunFinishedError, match="penstock extend small --max-stages N"):
        resolve(config, "resume")
    extend_run(context.run, to(max_stages=4))
    assert resolve(config, "resume").newest_stage == 1
