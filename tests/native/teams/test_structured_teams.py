"""Teams of the user's own: structured actions that differ between agents, their masks, and what is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import native
from penstock.native.teams.masks import permitted
from penstock.native.teams.structured import team_action

from ...support.environments.structured_teams import SPACES, TEAM, TURNS, other_thing
from .test_pettingzoo import round_of

OTHER = f"pettingzoo/{other_thing.__module__}:{other_thing.__name__}"
WIDTH = 10
"""Numbers of an agent's mask: nine of an arm, and whether it is there."""


def masks_of(pool: Any, observation: np.ndarray) -> np.ndarray:
    agents = pool.environment["agents"]
    return observation[:, : agents * WIDTH].reshape(-1, agents, WIDTH).astype(int)


def made(environment_id: str = TEAM, num_envs: int = 2, **settings: Any) -> Any:
    pool = native.make(environment_id, num_envs, autoreset_mode="SameStep", **settings)
    pool.action_space.seed(0)
    return pool


def test_an_agents_row_begins_with_its_vector():
    """As one agent's alone has it; zeros follow up to the longest, and the formats name every leaf of every agent."""
    pool = made()
    action = pool.environment["action"]
    assert (action["kind"], action["dtype"], action["shape"], action["n"]) == ("structured", "float32", (5, 5), WIDTH)
    assert [agent["name"] for agent in action["agents"]] == list(SPACES)
    assert [leaf["name"] for leaf in action["agents"][0]["leaves"]] == ["arm/0", "arm/1", "gear"]
    row = np.zeros((5, 5), np.float32)
    row[0] = -1, 1, 0, 1, 2
    row[2, :2] = 2, 0
    row[3, 0] = 0.5
    own = team_action(pool.own_action_space, row)
    assert own["left"]["gear"] == 4
    assert own["left"]["arm"][0].tolist() == [-4.0, 6.0]
    assert own["left"]["arm"][1].tolist() == [0, 1]
    assert own["flags"].tolist() == [2, -1]
    assert own["speed"].tolist() == [0.5]
    assert own["turn"] == 1
    for name, space in SPACES.items():
        assert space.contains(own[name]), name


def test_drawn_actions_are_what_agents_take():
    """Each of the pool's action space is in the agents' own, which refuse all others; 30 steps, also in rounds."""
    pool = made()
    pool.reset(seed=1)
    for _ in range(30):
        _, reward, *_ = pool.step(pool.action_space.sample())
        assert reward.shape == (2, 5)
    drawn = pool.single_action_space.sample()
    assert pool.single_action_space.contains(drawn)
    assert pool.own_action_space.contains(team_action(pool.own_action_space, drawn))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (
            (1, 0, 4),
            3,
            "action of left of environment 1: number 4 of its vector is 3.0, expected a whole number from 0 to 2",
        ),
        ((0, 2, 0), 0.5, "action of flags of environment 0.*is 0.5, expected a whole number from 0 to 2"),
        ((0, 3, 0), np.nan, "action of speed of environment 0.*expected a finite number"),
        ((1, 4, 2), 1, "action of turn of environment 1: number 2.*expected 0, since turn has 1 numbers"),
    ],
)
def test_another_action_is_refused(place: tuple[int, ...], value: float, said: str):
    """By the environment, the agent and the number; nothing was stepped."""
    pool = made()
    pool.reset(seed=1)
    action = np.zeros((2, 5, 5), np.float32)
    action[place] = value
    with pytest.raises(ValueError, match=said):
        pool.step(action)
    pool.step(np.zeros((2, 5, 5), np.float32))


def test_a_mask_of_the_environment_is_of_each_agents_choices():
    """In the order of the vector; numbers are always taken, and the last number says that the agent is there."""
    pool = made(masked=True)
    observation, _ = pool.reset(seed=1)
    masks = masks_of(pool, observation)[0]
    assert masks[0].tolist() == masks[1].tolist() == [1, 1, 1, 1, 1, 1, 0, 1, 1, 1]
    assert masks[2].tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0, 1]
    assert masks[3].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    for _ in range(20):
        action = permitted(pool.environment, observation, pool.action_space.sample())
        observation, *_ = pool.step(action)


def test_an_agent_that_leaves_has_a_mask_that_allows_nothing():
    """Not even a number, and it is not there; without the setting that is refused by name."""
    pool = made(leaving=True, agents_leave=True)
    observation, _ = pool.reset(seed=1)
    seen = []
    for _ in range(4):
        seen.append(bool(masks_of(pool, observation)[0, 0].any()))
        observation, *_ = pool.step(permitted(pool.environment, observation, pool.action_space.sample()))
    assert seen == [True, True, False, False]
    refusing = made(leaving=True)
    refusing.reset(seed=1)
    with pytest.raises(RuntimeError, match=r"left left before the episode's end.*agents_leave = true"):  # noqa: PT012
        for _ in range(4):
            refusing.step(refusing.action_space.sample())


def test_agents_whose_turn_it_is_not_may_take_choice_0_alone():
    """And no number; the agent that has numbers alone is there all the same."""
    pool = made(TURNS, 1, agents_leave=True)
    observation, _ = pool.reset(seed=1)
    for turn in range(5):
        masks = masks_of(pool, observation)[0]
        assert masks[:, -1].all()
        assert [bool(masks[agent, :9].sum() > waiting) for agent, waiting in enumerate((3, 3, 2, 0, 1))] == [
            agent == turn for agent in range(5)
        ]
        observation, reward, *_ = pool.step(permitted(pool.environment, observation, pool.action_space.sample()))
        assert reward.any() == (turn == 4)


@pytest.mark.parametrize("settings", [{}, {"masked": True}, {"leaving": True, "agents_leave": True}])
def test_a_restored_pool_repeats_its_actions(settings: dict[str, Any]):
    """Rounds after a restore have the bytes of those without it."""
    pools = [native.make(TEAM, 2, **settings) for _ in range(2)]
    for pool, seeds in zip(pools, ([1, 2], [8, 9]), strict=True):
        pool.reset_ids(np.array(seeds, np.uint64))
    round_of(pools[0], 15, np.random.default_rng(0))
    pools[1].restore(pools[0].save())
    first, other = (round_of(pool, 15, np.random.default_rng(7)) for pool in pools)
    assert first == other


def test_what_does_not_fit_is_refused_by_name():
    """Text, other things than environments, modules and functions that are not there, settings."""
    with pytest.raises(
        ValueError, match=r"what left observes has the leaf 'radio\.said', a text; expected .*my_function"
    ):
        native.make(TEAM, 1, said=True)
    with pytest.raises(ValueError, match="is a object, expected PettingZoo's ParallelEnv or AECEnv"):
        native.make(OTHER, 1)
    with pytest.raises(ValueError, match="has no function or class 'Teem'"):
        native.make(TEAM.replace(":Team", ":Teem"), 1)
    with pytest.raises(ValueError, match="the module 'no_such_module' can't be imported"):
        native.make("pettingzoo/no_such_module:Team", 1)
    with pytest.raises(ValueError, match=r"action_mask = 'info': the masks of .* are in front of the array anyway"):
        native.make(TEAM, 1, one_array=True, structured=True, action_mask="info")
    with pytest.raises(ValueError, match=r"no setting 'member'.*did you mean members"):
        native.make(TEAM, 1, member="left")
    with pytest.raises(ValueError, match="or pettingzoo/<module>:<function> for one of yours"):
        native.make("pettingzoo/board/chess_v6", 1)
