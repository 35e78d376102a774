"""MinAtar's games: what its Gymnasium environments give, and episodes that are functions of their seeds."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete
from gymnasium.vector import AutoresetMode

from penstock import native

GAME = "MinAtar/Breakout-v1"


@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_games_equal_minatars_own(game: str):
    """Cells, rewards and ends are those of MinAtar's Gymnasium environment with the same seeds."""
    env_id = f"MinAtar/{game}-v1"
    pool = native.make(env_id, 2, max_episode_steps=200)
    other = gymnasium.make_vec(
        env_id,
        2,
        "sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
        max_episode_steps=200,
    )
    assert np.array_equal(pool.reset(seed=11)[0], other.reset(seed=11)[0])
    actions, ends = np.random.default_rng(1), 0
    for _ in range(300):
        action = actions.integers(0, pool.single_action_space.n, 2)
        got, expected = pool.step(action), other.step(action)
        for left, right in zip(got[:4], expected[:4], strict=True):
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes()
        ends += int((got[2] | got[3]).sum())
    assert ends
    pool.close()
    other.close()


class Apart(gymnasium.ObservationWrapper):
    """Shows a choice beside the board."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = Dict({"board": env.observation_space, "side": Discrete(2)})

    def observation(self, observation):
        return {"board": observation, "side": 1}


def test_a_wrapper_may_give_leaves():
    """They are kept apart, as those of Gymnasium's other ids."""
    asked = {"wrappers": (Apart,), "one_array": True}
    pool = native.make(GAME, 1, structured=True, **asked)
    assert [leaf["name"] for leaf in pool.environment["observation"]["leaves"]] == ["board", "side"]
    own = gymnasium.make(GAME)
    np.testing.assert_array_equal(pool.reset(seed=3)[0][0], [*own.reset(seed=3)[0].ravel(), 0, 1])
    assert native.make(GAME, 1, **asked).environment["observation"]["shape"] == (402,)


def episodes(pool: native.EnvironmentPool, seeds: np.ndarray) -> bytes:
    pool.reset_ids(seeds)
    count, steps = len(seeds), 40
    buffers = {"observation": np.zeros((steps, count, 10, 10, 4), bool), "reward": np.zeros((steps, count), np.float32)}
    buffers |= {name: np.zeros((steps, count), np.uint8) for name in ("terminated", "truncated")}
    pool.begin_round(**buffers, episode_id=np.zeros((steps, count), np.int32))
    for step in range(steps):
        pool.step_round(step, np.full(count, step % 3))
    pool.end_round()
    return buffers["observation"].tobytes()


def test_episodes_are_a_function_of_64_bit_seeds():
    """Every bit counts; and an action of an earlier episode, which MinAtar would repeat now and then, does not."""
    pool = native.make(GAME, 100)
    seeds = np.arange(100, dtype=np.uint64) + np.uint64(2**63)
    first = episodes(pool, seeds)
    assert episodes(pool, seeds) == first
    assert episodes(pool, seeds + np.uint64(2**40)) != first
    pool.close()


def test_a_missing_extra_is_named():
    """Without MinAtar the error says which extra to install."""
    code = "import sys; sys.modules['minatar'] = None; from penstock.native import make; make('MinAtar/Freeway-v1', 1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MinAtar/Freeway-v1 needs MinAtar (GPL), and importing it failed" in result.stderr
    assert "pip install 'penstock-rl[minatar]'" in result.stderr
