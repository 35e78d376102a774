"""Toy text in C++ equals Gymnasium's, seed for seed: states one-hot, rewards, ends, probabilities and masks."""

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten

from penstock import native

TASKS: list[tuple[str, dict[str, Any]]] = [
    ("FrozenLake-v1", {}),
    ("FrozenLake-v1", {"is_slippery": False}),
    ("FrozenLake-v1", {"success_rate": 0.7}),
    ("FrozenLake8x8-v1", {}),
    ("FrozenLake-v1", {"map_name": "8x8"}),
    ("FrozenLake-v1", {"desc": ["SFFHS", "FFFFF", "HFSFG"]}),
    ("CliffWalking-v1", {}),
    ("CliffWalkingSlippery-v1", {}),
    ("Taxi-v4", {}),
    ("Taxi-v4", {"is_rainy": True}),
    ("Taxi-v4", {"is_rainy": True, "fickle_passenger": True, "rainy_probability": 0.6, "fickle_probability": 0.9}),
    ("Blackjack-v1", {}),
    ("Blackjack-v1", {"sab": False, "natural": True}),
]


def play(name: str, settings: dict[str, Any], seeds: int, steps: int, prefix: str = "") -> int:
    """Compare with Gymnasium under random actions; return how many episodes ended by themselves."""
    pool = native.make(f"toy/{prefix}{name}", seeds, autoreset_mode="Disabled", **settings)
    singles = [gymnasium.make(name, disable_env_checker=True, **settings) for _ in range(seeds)]
    space = singles[0].observation_space

    def row_of(observation: Any, info: dict[str, Any]) -> np.ndarray:
        seen = flatten(space, observation)
        return np.concatenate([info["action_mask"], seen]) if prefix else seen

    given = [11 * seed for seed in range(seeds)]
    seen, infos = pool.reset(seed=given)
    for row, env in enumerate(singles):
        observation, info = env.reset(seed=given[row])
        np.testing.assert_array_equal(seen[row], row_of(observation, info))
        for told in info:
            np.testing.assert_array_equal(infos[told][row], info[told])
    generator, terminations = np.random.default_rng(1), 0
    for _ in range(steps):
        actions = generator.integers(0, pool.single_action_space.n, seeds)
        seen, rewards, terminated, truncated, infos = pool.step(actions)
        over = terminated | truncated
        for row, env in enumerate(singles):
            observation, *outcome, info = env.step(int(actions[row]))
            assert [rewards[row], terminated[row], truncated[row]] == outcome
            np.testing.assert_array_equal(seen[row], row_of(observation, info))
            for told in info:
                np.testing.assert_array_equal(infos[told][row], info[told])
                assert infos[f"_{told}"][row]
        terminations += int(terminated.sum())
        if over.any():
            seen, _ = pool.reset(options={"reset_mask": over})
            for row in np.flatnonzero(over):
                np.testing.assert_array_equal(seen[row], row_of(*singles[row].reset()))
    return terminations


@pytest.mark.parametrize(("name", "settings"), TASKS)
def test_a_task_equals_gymnasium(name, settings):
    """Four seeds, 200 steps, with the episodes that follow from the same generators."""
    terminations = play(name, settings, 4, 200)
    assert terminations > 0 or name.startswith(("CliffWalking", "Taxi"))


def test_the_mask_of_taxi_is_in_front_of_its_state():
    """As `action_mask="info"` puts it in front of Gymnasium's."""
    play("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}, 4, 200, prefix="Masked")
    assert native.make("toy/MaskedTaxi-v4", 1).environment["observation"]["behind_mask"] == (500,)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), TASKS)
def test_long_play_equals_gymnasium(name, settings):
    """30 seeds, 3,000 steps."""
    play(name, settings, 30, 3000)


@pytest.mark.parametrize("name", sorted({name for name, _ in TASKS}))
def test_a_run_can_switch(name):
    """`ID` encoded as one array and `toy/ID` have the same spaces, limits and first observations."""
    wrapped = native.make(f"gymnasium/{name}", 4, one_array=True)
    own = native.make(f"toy/{name}", 4)
    assert own.single_observation_space == wrapped.single_observation_space
    assert own.environment["action"] == wrapped.environment["action"]
    for part in ("max_episode_steps", "reward_threshold"):
        assert own.environment[part] == wrapped.environment[part]
    np.testing.assert_array_equal(own.reset(seed=3)[0], wrapped.reset(seed=3)[0])


def test_rewards_are_settings():
    """Gymnasium's reward_schedule as three numbers."""
    schedule = (5.0, -2.0, -0.5)
    pool = native.make("toy/FrozenLake-v1", 1, goal_reward=5.0, hole_reward=-2.0, step_reward=-0.5)
    env = gymnasium.make("FrozenLake-v1", reward_schedule=schedule)
    pool.reset(seed=2), env.reset(seed=2)
    for action in (1, 1, 2, 0):
        assert pool.step(np.array([action]))[1][0] == env.step(action)[1]


def test_the_mask_of_taxi_is_told_as_by_gymnasium():
    """The infos of a pool are those of Gymnasium's SyncVectorEnv, types included."""
    pool = native.make("toy/Taxi-v4", 3)
    theirs = gymnasium.make_vec("Taxi-v4", 3, vectorization_mode="sync")
    ours, expected = pool.reset(seed=1)[1], theirs.reset(seed=1)[1]
    for actions in ([0, 1, 2], [3, 4, 5]):
        assert ours.keys() == expected.keys()
        assert ours["action_mask"].dtype == expected["action_mask"].dtype
        np.testing.assert_array_equal(ours["action_mask"], expected["action_mask"])
        ours, expected = pool.step(np.array(actions))[4], theirs.step(np.array(actions))[4]
    theirs.close()


def test_maps_of_ones_own_are_part_of_a_pool():
    """Its space, its copies, its spec, and what it draws; a state on another map is refused."""
    rows = ["SFF", "FHG"]
    pool = native.make("toy/FrozenLake-v1", 2, desc=rows, render_mode="rgb_array")
    assert pool.single_observation_space.shape == (6,)
    pool.reset(seed=0)
    pool.step(np.array([1, 2]))
    copy = pickle.loads(pickle.dumps(pool))
    assert np.array_equal(copy.observation, pool.observation)
    assert np.array_equal(copy.render()[0], pool.render()[0])
    assert pool.spec is not None
    assert pool.spec.kwargs["desc"] == rows
    again = gymnasium.make_vec(pool.spec)
    assert again.single_observation_space.shape == (6,)
    other = native.make("toy/FrozenLake-v1", 2)
    other.reset(seed=0)
    other.set_attr("square", 15)
    with pytest.raises(ValueError, match="has a square that is not on this pool's map"):
        pool.restore(other.save())
    one = gymnasium.make("penstock.native:toy/FrozenLake-v1", map_name="8x8")
    assert one.observation_space.shape == (64,)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"desc": ["SF", "FHG"]}, "desc: row 1 has 3 letters, expected 2, as row 0"),
        ({"desc": ["SX"]}, "desc: found the letter 'X', expected S, F, H and G"),
        ({"desc": ["FG"]}, "desc: found no S, expected a square to begin on"),
        ({"desc": ["S" * 5000]}, "desc: found 5000 squares, expected at most 4096"),
        ({"desc": [""]}, "desc must be a list of rows"),
        ({"desc": "SFG"}, r"desc must be a list of rows, such as \['SFF', 'FHG'\], got 'SFG'"),
        ({"map_name": "9x9"}, "map_name is '9x9', expected '4x4' or '8x8'; desc takes any map"),
        ({"map_name": "4x4", "desc": ["SG"]}, "map_name and desc say the same; give one of them"),
    ],
)
def test_what_is_no_map_is_refused(settings, reason):
    """By row and letter, before anything starts."""
    with pytest.raises(ValueError, match=reason):
        native.make("toy/FrozenLake-v1", 1, **settings)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("toy/CliffWalking-v1", {"square": 48}),
        ("toy/Taxi-v4", {"row": 5}),
        ("toy/Blackjack-v1", {"sum": 40}),
        ("toy/Blackjack-v1", {"dealer_sum": -(10**13)}),
        ("toy/Blackjack-v1", {"dealer_count": -1}),
        ("toy/FrozenLake8x8-v1", {"square": -1}),
    ],
)
def test_a_state_beyond_the_tables_is_refused(name, fields):
    """Nothing is read or written where there is nothing."""
    pool = native.make(name, 1)
    pool.reset(seed=0)
    for field, value in fields.items():
        with pytest.raises(ValueError, match="the state of environment 0 has a"):
            pool.set_attr(field, value)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("toy/FrozenLake-v1", {"success_rate": 1.5}, "success_rate must be between 0 and 1"),
        (
            "toy/Taxi-v4",
            {"rainy_probability": -1.0},
            "rainy_probability and fickle_probability must be",
        ),
        ("toy/Blackjack-v1", {"map_name": "4x4"}, "map_name"),
    ],
)
def test_settings_that_no_environment_can_run_with_are_refused(name, settings, reason):
    """By name, before anything starts."""
    with pytest.raises(ValueError, match=reason):
        native.make(name, 1, **settings)
