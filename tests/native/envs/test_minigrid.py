"""MiniGrid's tasks in C++ equal the package's, seed for seed: views, rewards, ends, and the episodes after them."""

import gymnasium
import numpy as np
import pytest

from penstock import native

IDS = tuple(name for name in native.environment_ids() if name.startswith("MiniGrid-"))
pytestmark = pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
FEW = (
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-Dynamic-Obstacles-Random-6x6-v0",
    "MiniGrid-Fetch-8x8-N3-v0",
    "MiniGrid-KeyCorridorS3R3-v0",
    "MiniGrid-LavaCrossingS9N3-v0",
    "MiniGrid-MultiRoom-N4-S5-v1",
)


@pytest.fixture(name="wrappers")
def _wrappers():
    return pytest.importorskip("minigrid.wrappers", reason="comes with penstock-rl[minigrid]")


def play(wrappers, name: str, seeds: int, steps: int, **settings: int) -> int:
    """Compare with the package under random actions; return how many episodes ended by themselves."""
    pool = native.make(name, seeds, autoreset_mode="SameStep", **settings)
    singles = [wrappers.ImgObsWrapper(gymnasium.make(name, disable_env_checker=True, **settings)) for _ in range(seeds)]
    given = [7 * seed for seed in range(seeds)]
    seen = pool.reset(seed=given)[0]
    wanted = np.stack([env.reset(seed=seed)[0] for env, seed in zip(singles, given, strict=True)])
    np.testing.assert_array_equal(seen, wanted)
    count = pool.single_action_space.n
    assert count == singles[0].action_space.n
    weights = np.array([2, 2, 4, 1, 1, 1, 0.1][:count])
    generator, terminations = np.random.default_rng(3), 0
    for _ in range(steps):
        actions = generator.choice(count, seeds, p=weights / weights.sum())
        seen, rewards, terminated, truncated, infos = pool.step(actions)
        for row, env in enumerate(singles):
            observation, *outcome, _ = env.step(int(actions[row]))
            assert [rewards[row], terminated[row], truncated[row]] == outcome
            if outcome[1] or outcome[2]:
                np.testing.assert_array_equal(infos["final_obs"][row], observation)
                terminations += outcome[1]
                observation, _ = env.reset()
            np.testing.assert_array_equal(seen[row], observation)
    return terminations


@pytest.mark.parametrize("name", FEW)
def test_a_task_equals_the_package(wrappers, name):
    """Four seeds, 150 steps: grids, views behind walls, doors, keys, rewards and the draws of later episodes."""
    play(wrappers, name, 4, 150, max_steps=40)


@pytest.mark.parametrize("name", IDS)
def test_every_first_view_equals_the_package(wrappers, name):
    """20 seeds of each id, and the space that the wrapped one has."""
    pool = native.make(name, 20)
    env = wrappers.ImgObsWrapper(gymnasium.make(name, disable_env_checker=True))
    wanted = np.stack([env.reset(seed=seed)[0] for seed in range(20)])
    np.testing.assert_array_equal(pool.reset(seed=0)[0], wanted)
    assert pool.single_observation_space == env.observation_space
    assert pool.config["max_steps"].tolist() == [env.unwrapped.max_steps] * 20


@pytest.mark.slow
@pytest.mark.parametrize("name", IDS)
def test_long_play_equals_the_package(wrappers, name):
    """Four seeds, 1,000 steps of each id."""
    play(wrappers, name, 4, 1000)


def test_a_preset_can_switch(wrappers):
    """`minigrid/ID` and `ID` are the same environment to a run: one description but for the id, and the same arrays."""
    del wrappers
    wrapped = native.make("minigrid/MiniGrid-DoorKey-5x5-v0", 3, autoreset_mode="SameStep")
    own = native.make("MiniGrid-DoorKey-5x5-v0", 3, autoreset_mode="SameStep")
    for part in ("observation", "action", "max_episode_steps", "reward_threshold"):
        assert own.environment[part] == wrapped.environment[part]
    np.testing.assert_array_equal(own.reset(seed=5)[0], wrapped.reset(seed=5)[0])
    generator = np.random.default_rng(0)
    for _ in range(100):
        actions = generator.integers(0, 7, 3)
        for mine, theirs in zip(own.step(actions)[:4], wrapped.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_solving_a_task_pays_what_minigrid_pays():
    """DoorKey's reward falls with the steps taken: one of 16 steps of 250 at the goal of an empty room."""
    pool = native.make("MiniGrid-Empty-5x5-v0", 1, autoreset_mode="Disabled")
    pool.reset(seed=0)
    rewards = [pool.step(np.array([action]))[1][0] for action in (2, 2, 1, 2, 2)]
    assert rewards == [0, 0, 0, 0, 1 - 0.9 * (5 / 100)]


def test_a_task_has_one_setting():
    """The steps of an episode, at least one, which are also its limit."""
    assert native.setting_types("MiniGrid-DoorKey-5x5-v0") == {"max_steps": int}
    assert native.make("MiniGrid-DoorKey-5x5-v0", 1).environment["max_episode_steps"] == 250
    assert native.make("MiniGrid-DoorKey-5x5-v0", 1, max_steps=30).environment["max_episode_steps"] == 30
    with pytest.raises(ValueError, match="no configuration field 'task'; its fields: max_steps=100"):
        native.make("MiniGrid-Empty-5x5-v0", 1, task=99)
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        native.make("MiniGrid-Empty-5x5-v0", 1, max_steps=0)


def test_a_state_of_another_task_is_refused():
    """Before it could lead out of the grid."""
    pool, other = (native.make(f"MiniGrid-{name}-v0", 1, max_steps=9) for name in ("Empty-5x5", "FourRooms"))
    pool.reset(seed=0)
    with pytest.raises(ValueError, match="it was saved by a pool of another id"):
        other.restore(pool.save())
    with pytest.raises(ValueError, match="has an agent or an obstacle outside of its grid"):
        pool.set_attr("x", 30)


@pytest.mark.parametrize("name", ["cells", "carried"])
@pytest.mark.parametrize("byte", [0x0C, 0x61, 0xE1])
def test_a_cell_that_cannot_be_is_refused(name: str, byte: int):
    """A thirteenth kind or a seventh colour, which no picture has."""
    pool = native.make("MiniGrid-Fetch-8x8-N3-v0", 2, render_mode="rgb_array")
    pool.reset(seed=0)
    before = pool.save()
    value = before[f"state.{name}"].copy()
    value.reshape(2, -1)[1, 0] = byte
    with pytest.raises(ValueError, match="environment 1 has a cell, or carries a thing, of no kind or colour"):
        pool.restore(before | {f"state.{name}": value})
    assert all(np.array_equal(before[column], now) for column, now in pool.save().items())
    pool.render()


def test_a_restored_pool_goes_on_bit_for_bit():
    """The state is saved whole: the grid, what is carried, where the balls are."""
    for name in ("MiniGrid-KeyCorridorS3R2-v0", "MiniGrid-Dynamic-Obstacles-8x8-v0"):
        pool = native.make(name, 8, max_steps=30)
        pool.reset(seed=1)
        generator = np.random.default_rng(2)
        actions = generator.integers(0, pool.single_action_space.n, (60, 8))
        for row in actions[:25]:
            pool.step(row)
        other = native.make(name, 8, max_steps=30)
        other.restore(pool.save())
        for row in actions[25:]:
            for mine, theirs in zip(pool.step(row)[:4], other.step(row)[:4], strict=True):
                np.testing.assert_array_equal(mine, theirs)
