"""Settings of structured and masked observations: what runs get of them, and what is refused before they start."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock.storage.errors import ConfigError
from penstock.storage.shards.leaves import split_leaves
from penstock.storage.shards.specs import Spec
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.setup.config.environment import EnvironmentSettings
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.preflight import check_acting

from ...support.environments.structured import CHOICES, ID

if TYPE_CHECKING:
    from ..conftest import MakeContext

STRUCTURED: dict[str, Any] = {"id": ID, "structured": True}
MASKED: dict[str, Any] = {**STRUCTURED, "action_mask": "info", "settings": {"masked": "info"}}


def test_an_algorithm_gets_leaves_and_mask_apart():
    """`policy_input` is without the mask, and its leaves are; shards have the mask as a leaf of its own."""
    from penstock.tasks.specs import EnvironmentSpec

    with closing(make_pool(build_config({"environment": MASKED, "algorithm": {"network": "leaves"}}), 2)) as pool:
        spec = EnvironmentSpec.from_pool(ID, dict(pool.environment))
    assert [leaf.name for leaf in spec.observation.leaves][:2] == ["action_mask", "arm.position"]
    assert spec.policy_input == Spec("float32", (258,), leaves=spec.observation.leaves[1:])
    seen = torch.zeros(4, CHOICES + 258)
    seen[:, 1] = 1
    unmasked, allowed = spec.split(seen)
    assert unmasked.shape == (4, 258)
    assert allowed is not None
    assert allowed.tolist() == [[False, True, False]] * 4


def test_a_round_is_acted_by_the_mask_and_stored_by_leaves(make_context: MakeContext):
    """The environment refuses forbidden choices, so every action was allowed; the shard's columns are the leaves'."""
    context = make_context(
        {"environment": {**MASKED, "max_episode_steps": None}, "algorithm": {"network": "leaves", "features": 4}}
    )
    actor, buffers = TileActor(context, 0), RoundBuffers(context, 0)
    actor.start()
    params = context.algorithm.init(1).params
    actor.act_round(0, params, buffers)
    observation = buffers.arrays["observation"]
    leaves = split_leaves("observation", context.columns["observation"], observation)
    chosen = buffers.arrays["action"][..., None]
    assert np.take_along_axis(leaves["observation.action_mask"], chosen, -1).all()
    assert leaves["observation.camera"].dtype == np.uint8
    assert leaves["observation.shift"].max() < CHOICES
    actor.close()


def test_older_runs_keep_their_identity():
    """The settings are part of it only where they are set."""
    plain = EnvironmentSettings(id=ID).identity()
    assert not {"structured", "action_mask"} & set(plain)
    assert EnvironmentSettings(**MASKED).identity().items() >= {"structured": True, "action_mask": "info"}.items()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"id": "CartPole-v1", "action_mask": "info"}, "action_mask = 'info': CartPole-v1 observes one array as it is"),
        ({"id": "gymnasium/CartPole-v1", "structured": True}, r"observes one array of shape \[4\], expected Discrete"),
        ({**STRUCTURED, "action_mask": "observation"}, "expected a Dict whose 'action_mask' has a number for each"),
        ({"id": ID, "settings": {"structured": True}}, r"settings\.structured: expected as environment\.structured"),
        ({"id": ID, "settings": {"action_mask": "info"}}, r"settings\.action_mask: expected as environment\.action_"),
        ({**STRUCTURED, "action_mask": "info"}, r"failed in its first step.*'action_mask' is missing"),
    ],
)
def test_mistakes_are_refused_before_a_run_starts(environment: dict[str, Any], message: str):
    """By the checks of `penstock plan` and `train`, with what was expected."""
    with pytest.raises(ConfigError, match=message):
        check_acting(build_config({"environment": environment}))


def test_columns_are_compressed_leaf_by_leaf():
    """`observation` names all leaves of a structured one; there is no other column to name."""
    settings = {"environment": STRUCTURED, "shards": {"compression": {"observation": "lz4"}}}
    check_acting(build_config(settings))
    with pytest.raises(ConfigError, match=r"there is no column observation\.camera; there are: observation, reward"):
        check_acting(build_config({**settings, "shards": {"compression": {"observation.camera": "lz4"}}}))
