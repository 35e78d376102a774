"""The rollout face: equal to the Gymnasium API, independent of threads, and exact through save and restore."""

from typing import Any

import numpy as np
import pytest

from penstock import native

IDS = ["CartPole-v1", "Pendulum-v1"]


def make_started(
    env_id: str, num_envs: int = 7, num_threads: int = 1, limit: int | None = 30, **config: Any
) -> native.Pool:
    pool = native.make(env_id, num_envs, num_threads, limit, "SameStep", **config)
    pool.reset_ids(np.arange(50, 50 + num_envs, dtype=np.uint64))
    return pool


def buffers(pool: native.Pool, steps: int) -> dict[str, np.ndarray]:
    """Buffers filled with what no environment gives, so that a row that is not written is seen."""
    shape = (steps, pool.num_envs)
    return {
        "observation": np.full((*shape, *pool.environment["observation"]["shape"]), np.nan, np.float32),
        "reward": np.full(shape, np.nan, np.float32),
        "terminated": np.full(shape, 9, np.uint8),
        "truncated": np.full(shape, 9, np.uint8),
        "episode_id": np.full(shape, -9, np.int32),
    }


def random_actions(pool: native.Pool, steps: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if pool.environment["action"]["kind"] == "discrete":
        return generator.integers(0, pool.environment["action"]["n"], (steps, pool.num_envs))
    return generator.uniform(-2, 2, (steps, pool.num_envs, *pool.environment["action"]["shape"])).astype(np.float32)


def play_round(pool: native.Pool, steps: int, seed: int) -> dict[str, np.ndarray]:
    """Everything that one round gives, under one name each."""
    arrays = buffers(pool, steps)
    pool.begin_round(**arrays)
    for t, action in enumerate(random_actions(pool, steps, seed)):
        pool.step_round(t, action)
    end = pool.end_round()
    extra = {"bootstrap_rows": end.bootstrap_rows, "bootstrap_observation": end.bootstrap_observation}
    return arrays | extra | {f"episodes.{name}": column for name, column in end.episodes.items()}


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype, name
        assert array.shape == right[name].shape, name
        assert array.tobytes() == right[name].tobytes(), name


@pytest.mark.parametrize("env_id", IDS)
def test_rounds_equal_the_gymnasium_api(env_id: str):
    """Three rounds hold row for row what step() gives.

    That is: observations before each action, final observations where an episode ended, episode ids that count up, and
    the episodes' lengths, returns and ends.
    """
    steps, num_envs = 40, 7
    rollout, stepped = make_started(env_id), native.make(env_id, num_envs, 1, 30, "SameStep")
    before, _ = stepped.reset(seed=50)
    ids, lengths, returns = np.zeros(num_envs, int), np.zeros(num_envs, int), np.zeros(num_envs)
    for number in range(3):
        got = play_round(rollout, steps, number)
        bootstrap: dict[int, np.ndarray] = {}
        episodes: list[tuple[Any, ...]] = []
        for t, action in enumerate(random_actions(stepped, steps, number)):
            assert np.array_equal(got["observation"][t], before)
            before, reward, terminated, truncated, info = stepped.step(action)
            assert np.array_equal(got["reward"][t], reward.astype(np.float32))
            assert np.array_equal(got["terminated"][t], terminated)
            assert np.array_equal(got["truncated"][t], truncated)
            assert np.array_equal(got["episode_id"][t], ids)
            lengths += 1
            returns += reward
            for env in range(num_envs):
                row = t * num_envs + env
                if terminated[env] or truncated[env]:
                    bootstrap[row] = info["final_obs"][env]
                    episodes.append((row, env, ids[env], lengths[env], returns[env], terminated[env], truncated[env]))
                    ids[env] += 1
                    lengths[env], returns[env] = 0, 0.0
                elif t == steps - 1:
                    bootstrap[row] = before[env]
        assert got["bootstrap_rows"].tolist() == sorted(bootstrap)
        assert np.array_equal(got["bootstrap_observation"], np.stack([bootstrap[row] for row in sorted(bootstrap)]))
        columns = ["row", "env", "episode_id", "length", "return", "terminated", "truncated"]
        assert list(zip(*(got[f"episodes.{name}"].tolist() for name in columns), strict=True)) == episodes
        assert len(episodes) >= num_envs
        assert np.array_equal(rollout.observation, before)


@pytest.mark.parametrize("env_id", IDS)
def test_results_do_not_depend_on_the_number_of_threads(env_id: str):
    """One and three threads (and more threads than environments) give the same bytes, on both APIs."""
    pools = [make_started(env_id, num_envs=11, num_threads=threads, limit=17) for threads in (1, 3, 40)]
    for number in range(3):
        first, *others = [play_round(pool, 25, number) for pool in pools]
        for other in others:
            assert_same(first, other)
    actions = random_actions(pools[0], 30, 8)
    for action in actions:
        first, *others = [pool.step(action) for pool in pools]
        for other in others:
            for left, right in zip(first[:4], other[:4], strict=True):
                assert left.tobytes() == right.tobytes()
            assert str(first[4]) == str(other[4])
    assert_same(pools[0].save(), pools[1].save())
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("env_id", IDS)
def test_restored_pool_resumes_bit_for_bit(env_id: str):
    """Steps after a restore equal those after the save, in a pool with another past and another team."""
    original = make_started(env_id)
    play_round(original, 23, 0)
    state = original.save()
    after = [play_round(original, 23, number) for number in (1, 2)]
    other = make_started(env_id, num_threads=3)
    other.reset_ids(np.arange(7, dtype=np.uint64))
    play_round(other, 5, 9)

    other.restore(state)

    assert_same(other.save(), state)
    for number, expected in zip((1, 2), after, strict=True):
        assert_same(play_round(other, 23, number), expected)


def test_saved_states_are_typed_deterministic_and_the_callers():
    """Same history, same bytes; named arrays of plain types; stepping on does not change what was saved."""
    left, right = make_started("CartPole-v1"), make_started("CartPole-v1")
    play_round(left, 20, 0)
    play_round(right, 20, 0)
    state = left.save()
    copy = {name: array.copy() for name, array in state.items()}

    assert list(state) == list(right.save())
    assert_same(state, right.save())
    play_round(left, 20, 1)
    assert_same(state, copy)
    assert {name: (str(array.dtype), array.shape) for name, array in state.items() if "config." not in name} == {
        "state.x": ("float64", (7,)),
        "state.x_dot": ("float64", (7,)),
        "state.angle": ("float64", (7,)),
        "state.angle_dot": ("float64", (7,)),
        "elapsed_steps": ("int64", (7,)),
        "episode_id": ("int64", (7,)),
        "episode_return": ("float64", (7,)),
        "episode_ended": ("bool", (7,)),
        "generator": ("uint64", (7, 5)),
    }


def test_a_flag_of_a_state_that_is_neither_is_true():
    """A header's reset may leave one unset: it is saved as it was, and restored as a bool."""
    pool = native.make("toy/Blackjack-v1", 3)
    pool.reset(seed=0)
    state = pool.save()
    unset = np.array([0, 240, 1], np.uint8).view(np.bool_)
    pool.restore(state | {"state.dealer_ace": unset})
    assert pool.save()["state.dealer_ace"].view(np.uint8).tolist() == [0, 1, 1]


def test_impossible_state_is_refused_and_changes_nothing():
    """A missing, foreign or wrongly typed array and values that cannot be are named; the pool stays as it was."""
    pool = make_started("CartPole-v1")
    play_round(pool, 20, 0)
    before = pool.save()
    even = before["generator"].copy()
    even[3, 3] &= ~np.uint64(1)
    long_half = before["generator"].copy()
    long_half[5, 4] = 7
    heavier = before["config.gravity"].copy()
    heavier[2] = 1.62
    neither = np.array([0, 1, 1, 0, 2, 0, 0], np.uint8).view(np.bool_)
    wrong = [
        ({name: array for name, array in before.items() if name != "state.x"}, "lacks 'state.x'"),
        (before | {"state.y": before["state.x"]}, "expected exactly"),
        (before | {"state.x": before["state.x"].astype(np.float32)}, "state.x: expected a C-contiguous float64"),
        (before | {"state.x": before["state.x"][:3]}, r"shape \(7,\), got float64 \(3,\)"),
        (before | {"generator": even}, "generator of environment 3 is not one of PCG64"),
        (before | {"generator": long_half}, "generator of environment 5 is not one of PCG64"),
        (before | {"elapsed_steps": before["elapsed_steps"] - 1000}, "elapsed_steps of environment 0 is negative"),
        (before | {"episode_ended": neither}, "episode_ended of environment 4 is neither true nor false"),
        (before | {"config.sutton_barto_reward": neither}, "sutton_barto_reward of environment 4 is neither"),
        (before | {"episode_id": before["episode_id"] + 2**31}, "episode_id of environment 0"),
        (before | {"config.gravity": heavier}, "config.gravity of environment 2 is 1.62"),
    ]
    for state, message in wrong:
        with pytest.raises(ValueError, match=message):
            pool.restore(state)
    assert_same(pool.save(), before)


def test_seeds_matter_and_ids_do_not():
    """An environment's course depends on its seed and not on its position or its neighbours."""
    pool = make_started("CartPole-v1", num_envs=16)
    assert len(np.unique(pool.observation, axis=0)) == 16
    alone = native.make("CartPole-v1", 1)
    alone.reset_ids(np.array([59], dtype=np.uint64))
    assert np.array_equal(alone.observation[0], pool.observation[9])


def test_each_environment_has_its_own_configuration():
    """One value an environment: each goes the way that a pool of that value alone goes."""
    gravities = [9.8, 1.62, 24.8]
    mixed = native.make("CartPole-v1", 3, gravity=gravities)
    mixed.reset_ids(np.full(3, 5, dtype=np.uint64))
    assert mixed.config["gravity"].tolist() == gravities
    for _ in range(8):
        observation, *_ = mixed.step(np.zeros(3, np.int64))
    assert len(np.unique(observation, axis=0)) == 3
    for index, gravity in enumerate(gravities):
        alone = native.make("CartPole-v1", 1, gravity=gravity)
        alone.reset_ids(np.array([5], dtype=np.uint64))
        for _ in range(8):
            expected, *_ = alone.step(np.zeros(1, np.int64))
        assert np.array_equal(observation[index], expected[0])


def test_spec_describes_spaces_and_limits():
    """The plain-data description agrees with the spaces and with Gymnasium's registry."""
    cartpole, pendulum = native.make("CartPole-v1", 2), native.make("Pendulum-v1", 2, max_episode_steps=50)

    assert cartpole.environment == {
        "id": "CartPole-v1",
        "observation": {"dtype": "float32", "shape": (4,)},
        "action": {"kind": "discrete", "dtype": "int64", "shape": (), "n": 2},
        "agents": 0,
        "max_episode_steps": 500,
        "reward_threshold": 475.0,
    }
    assert pendulum.environment == {
        "id": "Pendulum-v1",
        "observation": {"dtype": "float32", "shape": (3,)},
        "action": {"kind": "box", "dtype": "float32", "shape": (1,), "low": [-2.0], "high": [2.0]},
        "agents": 0,
        "max_episode_steps": 50,
        "reward_threshold": None,
    }
    assert repr(cartpole) == "Pool(CartPole-v1, num_envs=2)"


FAILS_TO_RESET = """
#include <penstock/library.hpp>
struct Unlucky {
  static constexpr penstock::Info info{.id = "Unlucky-v0"};
  static constexpr penstock::Discrete<2> action{};
  static constexpr auto observation = penstock::Box<1>::symmetric({1.0});
  struct Config {
    bool fails = false;
    PENSTOCK_FIELDS(Config, fails)
  } config;
  struct State {
    double place;
    PENSTOCK_FIELDS(State, place)
  } state;
  void reset(penstock::Rng&) {
    if (config.fails) throw std::runtime_error("bad reset");
    state = {0.5};
  }
  penstock::Step step(std::int64_t) { return {.reward = 1.0}; }
  void observe(std::span<float, 1> out) const { out[0] = float(state.place); }
};
PENSTOCK_LIBRARY(Unlucky)
"""


def test_an_environment_that_fails_to_reset_is_named():
    """The others are reset, and it alone is reset again once it can be."""
    native.load(FAILS_TO_RESET, flags=["-O0"])
    pool = native.make("Unlucky-v0", 3, autoreset_mode="Disabled", fails=[False, True, False])
    with pytest.raises(RuntimeError, match="environment 1 of Unlucky-v0 failed: bad reset"):
        pool.reset(seed=0)
    pool.configure(fails=False)
    pool.reset(seed=0, options={"reset_mask": np.array([False, True, False])})
    assert pool.step([0, 0, 0])[1].tolist() == [1.0, 1.0, 1.0]
