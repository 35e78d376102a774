"""The leaves of a team's observations: one array of all agents' numbers, leaf after leaf, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import native
from penstock.native.teams.masks import permitted
from penstock.storage.shards.leaves import split_leaves
from penstock.storage.shards.specs import Leaf, Spec

from ...support.environments.seeing_teams import CHOICES, SEEING, SEEING_TURNS, SIDE, Seeing
from ..teams.test_pettingzoo import round_of

NUMBERS = 2 + SIDE * SIDE * 3 + CHOICES
"""Numbers of one agent, with those of a picture also where it has none."""


def made(environment_id: str = SEEING, num_envs: int = 2, **settings: Any) -> Any:
    pool = native.make(environment_id, num_envs, autoreset_mode="SameStep", one_array=True, structured=True, **settings)
    pool.action_space.seed(0)
    return pool


def leaves_of(pool: Any, observation: np.ndarray) -> dict[str, np.ndarray]:
    """Return the leaves of arrays `[envs, numbers]`, as shards hold them, by name."""
    described = pool.environment["observation"]
    leaves = tuple(Leaf.from_json(leaf) for leaf in described["leaves"])
    spec = Spec(described["dtype"], tuple(described["shape"]), leaves=leaves)
    return {name.removeprefix("o."): part for name, part in split_leaves("o", spec, observation).items()}


def test_each_leaf_has_all_agents_numbers():
    """In their own types, those of an agent without it are 0; the array is that of what the team itself shows."""
    pool, team = made(num_envs=1), Seeing()
    observation, _ = pool.reset(seed=[7])
    shown, _ = team.reset(seed=7)
    found = leaves_of(pool, observation)
    assert {name: (part.dtype, part.shape) for name, part in found.items()} == {
        "arm.position": (np.float32, (1, 3, 2)),
        "camera": (np.uint8, (1, 3, SIDE, SIDE, 3)),
        "shift": (np.int64, (1, 3)),
    }
    for row, (name, seen) in enumerate(shown.items()):
        assert np.array_equal(found["arm.position"][0, row], seen["arm"]["position"])
        assert found["shift"][0, row] == seen["shift"] - 1
        assert np.array_equal(found["camera"][0, row], seen.get("camera", np.zeros((SIDE, SIDE, 3))))
        assert ("camera" in seen) == (name != "pilot")
    assert pool.single_observation_space.contains(observation[0])
    assert np.array_equal(pool.single_observation_space.encode(shown), observation[0])


def test_pictures_alone_are_a_leaf():
    """Without a dictionary around them; a team has no other network of images."""
    pool = made(pictures=True, members="guide,other")
    leaf = pool.environment["observation"]["leaves"][0]
    assert (leaf["name"], leaf["kind"], leaf["shape"]) == ("value", "image", (2, SIDE, SIDE, 3))


def test_masks_of_all_agents_come_first():
    """As a leaf; steps with permitted choices alone are taken, and own observations give the same array."""
    pool, team = made(num_envs=1, masked=True), Seeing(masked=True)
    observation, _ = pool.reset(seed=[7])
    shown, _ = team.reset(seed=7)
    masks = leaves_of(pool, observation)["action_mask"]
    assert pool.environment["observation"]["behind_mask"] == (3 * NUMBERS,)
    assert masks.tolist() == [[seen["action_mask"].tolist() for seen in shown.values()]]
    assert np.array_equal(pool.single_observation_space.encode(shown), observation[0])
    for _ in range(20):
        observation, *_ = pool.step(permitted(pool.environment, observation, pool.action_space.sample()))
        leaves_of(pool, observation)


@pytest.mark.parametrize("environment_id", [SEEING, SEEING_TURNS])
def test_an_agent_that_is_not_there_observes_zeros_and_choice_0(environment_id: str):
    """All arrays have leaves, also after the last step; arrays of observations alone need masks that these show."""
    settings: dict[str, Any] = {"leaving": True} if environment_id == SEEING else {}
    pool = made(environment_id, 1, agents_leave=True, **settings)
    observation, _ = pool.reset(seed=1)
    left = []
    for _ in range(10):
        action = permitted(pool.environment, observation, pool.action_space.sample())
        before = leaves_of(pool, observation)["action_mask"][0, 0].any()
        observation, *_ = pool.step(action)
        found = leaves_of(pool, observation)
        if not before and not found["action_mask"][0, 0].any():
            left.append(any(found[leaf][0, 0].any() for leaf in ("camera", "shift", "arm.position")))
    assert left == ([False] * len(left))
    assert bool(left) == bool(settings)
    assert pool.single_observation_space.encode is None


def test_a_restored_pool_repeats_its_observations():
    """Rounds after a restore have the bytes of those without it."""
    pools = [native.make(SEEING, 2, one_array=True, structured=True) for _ in range(2)]
    for pool, seeds in zip(pools, ([1, 2], [8, 9]), strict=True):
        pool.reset_ids(np.array(seeds, np.uint64))
    round_of(pools[0], 15, np.random.default_rng(0))
    pools[1].restore(pools[0].save())
    first, other = (round_of(pool, 15, np.random.default_rng(7)) for pool in pools)
    assert first == other


def test_leaves_of_one_name_that_differ_are_refused_by_name():
    """With both agents, what each has, and two ways out."""
    with pytest.raises(
        ValueError,
        match=r"leaf 'shift' of pilot is numbers float32\[2\], and that of guide choice int64\[\] of \[3\], expected "
        r"one kind.*leave out structured.*another key, as pettingzoo/my_module:my_function",
    ):
        made(other=True)
    native.make(SEEING, 1, other=True).close()
