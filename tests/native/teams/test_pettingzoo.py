"""PettingZoo's environments: what they give alone, with an agent axis, and masks for those that may not act."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.native.teams.masks import permitted
from penstock.native.teams.pettingzoo import pettingzoo_ids

from ...support.environments.mortal_team import MORTALS

pytest.importorskip("pettingzoo", reason="comes with penstock-rl[pettingzoo]")
mpe2 = pytest.importorskip("mpe2", reason="comes with penstock-rl[pettingzoo]")

SPREAD = "pettingzoo/mpe/simple_spread_v3"
FOUR = "pettingzoo/classic/connect_four_v3"
KNIGHTS = "pettingzoo/butterfly/knights_archers_zombies_v11"
STEPPED = ("/mpe/", "classic/connect_four", "classic/tictactoe", "classic/rps", "sisl/pursuit", "butterfly/knights")
HEAVY = ("sisl/pursuit", "mpe/collect_treasure", "butterfly/knights")
IDS = [
    pytest.param(name, marks=pytest.mark.slow) if any(part in name for part in HEAVY) else name
    for name in pettingzoo_ids()
    if any(part in name for part in STEPPED)
]
"""Those that need nothing but the extra."""


def random_actions(pool: Any, observation: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return random actions that the masks allow, [num_envs, agents, ...]; 0 for an agent that has left."""
    described = pool.environment
    action, shape = described["action"], (pool.num_envs, *described["action"]["shape"])
    if action["kind"] == "box":
        return generator.uniform(action["low"], action["high"], shape).astype(np.float32)
    if action["kind"] == "structured":
        pool.action_space.seed(int(generator.integers(1 << 31)))
        return permitted(described, observation, pool.action_space.sample())
    ease = generator.random((*shape, action["n"]))
    if "behind_mask" in described["observation"]:
        ease *= observation[:, : shape[1] * action["n"]].reshape(ease.shape) != 0
    return ease.argmax(-1)


@pytest.mark.parametrize("environment_id", IDS)
def test_every_environment_steps_as_its_spaces_say(environment_id: str):
    """100 random steps of two: types, shapes, bounds, a reward for each agent; the same in another pool."""
    settings = {"agents_leave": True} if environment_id == KNIGHTS else {}
    pools = [native.make(environment_id, 2, autoreset_mode="SameStep", **settings) for _ in range(2)]
    shown = [pool.reset(seed=3)[0] for pool in pools]
    generator = np.random.default_rng(0)
    for _ in range(100):
        actions = random_actions(pools[0], shown[0], generator)
        results = [pool.step(actions) for pool in pools]
        shown = [result[0] for result in results]
        assert shown[0].dtype == pools[0].observation_space.dtype
        assert pools[0].observation_space.contains(shown[0])
        assert results[0][1].shape == (2, pools[0].environment["agents"])
        for mine, other in zip(results[0][:4], results[1][:4], strict=True):
            assert mine.tobytes() == other.tobytes()
    for pool in pools:
        pool.close()


def test_agents_that_act_at_once_get_what_mpe_gives():
    """Observations, rewards of each agent, truncations and the episode after them equal mpe2's own, by ==."""
    pool = native.make(SPREAD, 2, autoreset_mode="SameStep", max_cycles=10)
    theirs = [mpe2.simple_spread_v3.parallel_env(max_cycles=10) for _ in range(2)]
    observation, _ = pool.reset(seed=[5, 6])
    expected = [env.reset(seed=seed)[0] for env, seed in zip(theirs, (5, 6), strict=True)]
    generator, ends = np.random.default_rng(1), 0
    for _ in range(25):
        for index, seen in enumerate(expected):
            assert np.array_equal(observation[index], np.stack(list(seen.values())))
        actions = generator.integers(0, 5, (2, 3))
        observation, reward, terminated, truncated, infos = pool.step(actions)
        for index, env in enumerate(theirs):
            names = env.possible_agents
            seen, rewards, _, truncations, _ = env.step(dict(zip(names, actions[index].tolist(), strict=True)))
            assert reward[index].tolist() == list(rewards.values())
            assert truncated[index] == all(truncations.values())
            if truncated[index]:
                assert np.array_equal(infos["final_obs"][index], np.stack(list(seen.values())))
                seen, ends = env.reset()[0], ends + 1
            expected[index] = seen
        assert not terminated.any()
    assert ends == 4
    pool.close()


def test_spread_equals_the_native_environment():
    """The same seeds and actions in `simple_spread_v3`, which Penstock steps itself."""
    ours, theirs = native.make("simple_spread_v3", 3), native.make(SPREAD, 3)
    assert ours.environment["action"] == theirs.environment["action"]
    assert np.array_equal(ours.reset(seed=2)[0], theirs.reset(seed=2)[0])
    generator = np.random.default_rng(0)
    for _ in range(60):
        actions = generator.integers(0, 5, (3, 3))
        mine, other = ours.step(actions), theirs.step(actions)
        assert np.array_equal(mine[0], other[0])
        assert all(np.array_equal(left, right) for left, right in zip(mine[1:4], other[1:4], strict=True))


def test_turns_are_steps_of_one_agent():
    """Connect four: who is not to move may choose 0 alone, a column that is full is forbidden, the winner gets 1."""
    pool = native.make(FOUR, 1, autoreset_mode="SameStep")
    observation, _ = pool.reset(seed=0)
    for turn in range(7):
        masks = observation[0, :14].reshape(2, 7)
        assert masks[turn % 2].all()
        assert masks[1 - turn % 2].tolist() == [1, 0, 0, 0, 0, 0, 0]
        column = turn % 2  # each fills a column of its own; the first has four at its fourth turn
        actions = np.full((1, 2), column)
        observation, reward, terminated, truncated, infos = pool.step(actions)
        assert terminated[0] == (turn == 6)
        assert not truncated[0]
        assert reward[0].tolist() == ([1.0, -1.0] if turn == 6 else [0.0, 0.0])
    assert infos["final_obs"][0][:14].all()
    assert observation[0, 14:].sum() == 0
    pool.close()


def test_agents_that_leave_have_a_mask_that_allows_nothing():
    """Archers and knights die before their episode ends; without the setting that is refused by name."""
    pool = native.make(KNIGHTS, 1, autoreset_mode="SameStep", agents_leave=True, max_arrows=1, spawn_delay=1)
    observation, _ = pool.reset(seed=1)
    count, generator, left = pool.environment["action"]["n"], np.random.default_rng(0), 0
    for _ in range(900):
        masks = observation[0, : 4 * count].reshape(4, count)
        left += int((masks.sum(1) == 0).sum())
        assert masks.any()
        observation, *_ = pool.step(random_actions(pool, observation, generator))
    assert left
    pool.close()

    refusing = native.make(KNIGHTS, 1, max_arrows=1, spawn_delay=1)
    observation, _ = refusing.reset(seed=1)
    with pytest.raises(RuntimeError, match=r"left before the episode's end.*agents_leave = true"):  # noqa: PT012
        for _ in range(900):
            observation, *_ = refusing.step(random_actions(refusing, observation, generator))


@pytest.mark.parametrize(
    ("settings", "limit", "going_on", "truncated"),
    [
        ({"dies_at": 2}, 4, [True, False], True),
        ({"dies_at": 2, "ends_at": 4}, None, [True, False], True),
        ({"dies_at": 4, "ends_at": 4}, None, [True, False], True),
        ({"dies_at": 9}, 4, [True, True], True),
        ({"dies_at": 2, "wins_at": 4}, None, [True, True], False),
        ({"dies_at": 2, "wins_at": 4, "ends_at": 4}, None, [True, True], False),
    ],
    ids=["cut", "its own limit", "in one step", "nobody died", "a termination", "both at once"],
)
def test_the_last_mask_says_whose_returns_go_on(settings, limit, going_on: list[bool], truncated: bool):
    """After a truncation, those of the agents that were there, and that their last step has not terminated."""
    pool = native.make(
        MORTALS, 1, max_episode_steps=limit, autoreset_mode="SameStep", agents_leave=True, one_array=True, **settings
    )
    pool.reset(seed=1)
    for step in range(1, 5):
        _, _, terminated, cut, infos = pool.step(np.zeros((1, 2), np.int64))
        assert bool(terminated[0] or cut[0]) == (step == 4)
    masks = infos["final_obs"][0][: 2 * pool.environment["action"]["n"]].reshape(2, -1)
    assert masks.any(1).tolist() == going_on
    assert cut[0] == truncated
    pool.close()


def test_agents_with_other_spaces_are_padded():
    """The speaker has 3 numbers and 3 choices, the listener 11 and 5: zeros follow, and the mask forbids choices."""
    pool = native.make("pettingzoo/mpe/simple_speaker_listener_v4", 2)
    observation, _ = pool.reset(seed=0)
    masks, rows = observation[:, :10].reshape(2, 2, 5), observation[:, 10:].reshape(2, 2, 11)
    assert masks[0].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert not rows[:, 0, 3:].any()
    with pytest.raises(RuntimeError, match="speaker_0 has 3 choices, got 4: its mask forbids the others"):
        pool.step(np.full((2, 2), 4))


def test_numbers_are_actions_too():
    """Boxes of the agents, float32 with an agent axis."""
    pool = native.make(SPREAD, 2, continuous_actions=True)
    assert pool.environment["action"]["shape"] == (3, 5)
    pool.reset(seed=0)
    pool.step(np.zeros((2, 3, 5), np.float32))
    with pytest.raises(ValueError, match="expected finite numbers"):
        pool.step(np.full((2, 3, 5), np.nan))


@pytest.mark.parametrize("environment_id", [SPREAD, FOUR])
def test_a_restored_pool_repeats_its_actions(environment_id: str):
    """Rounds after a restore have the bytes of those without it."""
    pools = [native.make(environment_id, 2, max_episode_steps=20) for _ in range(2)]
    generator = np.random.default_rng(0)
    for pool, seeds in zip(pools, ([1, 2], [8, 9]), strict=True):
        pool.reset_ids(np.array(seeds, np.uint64))
    round_of(pools[0], 30, generator)
    pools[1].restore(pools[0].save())
    first, other = (round_of(pool, 25, np.random.default_rng(7)) for pool in pools)
    assert first == other


def round_of(pool: Any, steps: int, generator: np.random.Generator) -> bytes:
    """Act a round at random; return the bytes of all its buffers."""
    described, shape = pool.environment, (steps, pool.num_envs)
    observation = np.zeros((*shape, *described["observation"]["shape"]), described["observation"]["dtype"])
    reward = np.zeros((*shape, described["agents"]), np.float32)
    flags = [np.zeros(shape, np.uint8), np.zeros(shape, np.uint8), np.zeros(shape, np.int32)]
    pool.begin_round(observation, reward, *flags)
    for t in range(steps):
        pool.step_round(t, random_actions(pool, observation[t], generator))
    end = pool.end_round()
    assert sum(end.episodes["length"]) > 0
    arrays = [observation, reward, *flags, end.bootstrap_observation, *end.episodes.values()]
    return b"".join(array.tobytes() for array in arrays)


def test_returns_are_the_mean_of_the_agents_rewards():
    """As those of native environments of several agents."""
    pool = native.make(SPREAD, 1, max_cycles=5)
    pool.reset_ids(np.array([1], np.uint64))
    reward = np.zeros((5, 1, 3), np.float32)
    flags = [np.zeros((5, 1), np.uint8), np.zeros((5, 1), np.uint8), np.zeros((5, 1), np.int32)]
    pool.begin_round(np.zeros((5, 1, 3, 18), np.float32), reward, *flags)
    for t in range(5):
        pool.step_round(t, np.ones((1, 3), np.int64))
    (found,) = pool.end_round().episodes["return"]
    assert found == pytest.approx(reward.mean(-1).sum(), rel=1e-6)


def test_mistakes_are_refused_by_name():
    """Families, names, settings, modes and actions."""
    with pytest.raises(ValueError, match="with a family of atari, butterfly, classic, mpe, sisl"):
        native.make("pettingzoo/board/chess_v6", 1)
    with pytest.raises(ValueError, match="similar: pettingzoo/mpe/simple_spread_v3"):
        native.make("pettingzoo/mpe/simple_spred_v3", 1)
    with pytest.raises(ValueError, match=r"no setting 'max_cycle'.*did you mean max_cycles"):
        native.make(SPREAD, 1, max_cycle=4)
    with pytest.raises(ValueError, match="agents_leave is 1, expected true or false"):
        native.make(SPREAD, 1, agents_leave=1)
    with pytest.raises(ValueError, match="is NextStep or SameStep, got Disabled"):
        native.make(SPREAD, 1, autoreset_mode=AutoresetMode.DISABLED)
    pool = native.make(SPREAD, 1)
    pool.reset(seed=0)
    with pytest.raises(ValueError, match=r"action 5 of agent 1 of environment 0: expected 0 to 4"):
        pool.step([[0, 5, 0]])
    with pytest.raises(ValueError, match=r"array of shape \(1, 3\)"):
        pool.step([[0, 1]])
