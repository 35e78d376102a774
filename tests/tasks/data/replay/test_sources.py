"""One replay learns from one environment, by everything that its rows depend on."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.data.replay.plan import make_plan, require_rows
from penstock.tasks.setup.config.consent import record_consent
from penstock.tasks.setup.config.loading import build_config, merge
from penstock.tasks.setup.config.replay import build_replay_config
from penstock.tasks.setup.planning.resolve import resolve

from ....storage.runs.test_gc import History

PENDULUM: dict[str, Any] = {"environment": {"id": "gymnasium/Pendulum-v1"}}


@pytest.mark.parametrize(
    ("difference", "named"),
    [
        ({"settings": {"g": 9.0}}, "9.0"),
        ({"wrappers": ["gymnasium.wrappers.TimeAwareObservation"]}, "wrappers.*TimeAwareObservation"),
        (
            {
                "wrappers": [
                    {"name": "gymnasium.wrappers.RescaleAction", "settings": {"min_action": -1.0, "max_action": 1.0}}
                ]
            },
            "wrappers.*RescaleAction.*min_action",
        ),
        ({"structured": True}, "structured"),
        ({"action_mask": "info"}, "action_mask info"),
        ({"header_text": "struct Other {};"}, "header [0-9a-f]{32}"),
        ({"model_digest": "0" * 32}, "model 0{32}"),
    ],
)
def test_runs_of_another_environment_are_refused(tmp_path, difference: dict[str, Any], named: str):
    """Rows of both would have one shape and another meaning; equal ones are taken together."""
    root = open_store(tmp_path)
    for name, values in (("one", {}), ("alike", {}), ("other", {"environment": difference})):
        config = build_config(merge(PENDULUM, values))
        stored = {"config": config.model_dump(mode="json", exclude={"store", "cluster"})}
        History(root, name, real_shards=True, description=stored).commit(0)
        record_consent(RunFolder(root, name))
    with pytest.raises(ConfigError, match=rf"'other' has environment .*{named}.*one replay learns from one"):
        make_plan(root, build_replay_config({"source": {"runs": ["one", "other"]}}))
    plan, _ = make_plan(root, build_replay_config({"source": {"runs": ["one", "alike"]}}))
    assert len(plan) == 8


def test_numbers_and_their_order_are_not_text(tmp_path):
    """1 is 1.0, and settings of a wrapper have no order."""
    root = open_store(tmp_path)
    given = ({"min_action": -1, "max_action": 1}, {"max_action": 1.0, "min_action": -1.0})
    for name, settings in zip(("one", "alike"), given, strict=True):
        wrapped = {"wrappers": [{"name": "gymnasium.wrappers.RescaleAction", "settings": settings}]}
        config = build_config(merge(PENDULUM, {"environment": wrapped}))
        stored = {"config": config.model_dump(mode="json", exclude={"store", "cluster"})}
        History(root, name, real_shards=True, description=stored).commit(0)
    plan, _ = make_plan(root, build_replay_config({"source": {"runs": ["one", "alike"]}}))
    assert len(plan) == 8


@pytest.mark.parametrize("selection", [{"versions": {"first": 99}}, {"min_return": 1e9}])
def test_a_selection_without_rows_is_refused_before_the_start(tmp_path, selection: dict[str, Any]):
    """With what to widen; rows of an old stage alone are found as well."""
    root = open_store(tmp_path)
    stored = build_config(PENDULUM).model_dump(mode="json", exclude={"store", "cluster"})
    history = History(root, "one", real_shards=True, description={"config": stored})
    for stage in range(2):
        history.commit(stage)
    config = build_replay_config({"store": str(tmp_path), "name": "two", "source": {"runs": ["one"], **selection}})
    with pytest.raises(ConfigError, match=r"no row of one is left with stages '0:'.*widen one of them"):
        resolve(config, "refuse")
    for some in ({}, {"versions": {"last": 0}}, {"versions": {"first": 1}}):
        require_rows(root, build_replay_config({"source": {"runs": ["one"], **some}}))
