"""The distribution penstock-box2d: its tasks are Gymnasium's bit for bit, and saved states continue as they were."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from penstock import native

PACKAGE = Path(native.__file__).resolve().parent / "packages" / "box2d"
LANDERS = ("LunarLander-v3", "LunarLanderContinuous-v3")
WALKERS = ("BipedalWalker-v3", "BipedalWalkerHardcore-v3")
WIND = {"enable_wind": True, "gravity": -7.5, "wind_power": 18.0, "turbulence_power": 1.9}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> native.Library:
    """Build the distribution's library as its own build does: pip gets the sources, or BOX2D_SDIST names them."""
    folder = tmp_path_factory.mktemp("box2d")
    options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (["cmake", "-S", PACKAGE, "-B", folder, *options], ["cmake", "--build", folder]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "'pip', 'download'" in done.stderr:
            pytest.skip(f"pip finds no sources of Box2D here: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stdout + done.stderr
    return native.load_library(folder / "box2d.so")


def actions_of(pool: native.EnvironmentPool, steps: int, seed: int) -> np.ndarray:
    rng, space = np.random.default_rng(seed), pool.single_action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(0, space.n, (steps, pool.num_envs))
    return rng.uniform(-1.2, 1.2, (steps, pool.num_envs, *space.shape)).astype(np.float32)


def land(observation: np.ndarray) -> np.ndarray:
    """Return the discrete action of a controller that mostly lands, so that episodes end asleep on the ground too."""
    x, y, vx, vy, angle, spin, left, right = observation.astype(np.float64).T
    turn = 0.5 * (np.clip(0.5 * x + vx, -0.4, 0.4) - angle) - spin
    rise = 0.5 * (0.55 * abs(x) - y) - 0.5 * vy
    standing = (left + right) > 0
    turn, rise = np.where(standing, 0.0, turn), np.where(standing, -0.5 * vy, rise)
    sideways = np.where(turn < -0.05, 3, np.where(turn > 0.05, 1, 0))
    return np.where((rise > abs(turn)) & (rise > 0.05), 2, sideways)


def same_as_gymnasium(name: str, num_envs: int, steps: int, *, lands: bool = False, **settings: float) -> set[float]:
    """Compare every number of `steps` steps of each environment with ==; return the rewards of the episodes' ends.

    Each episode of Gymnasium's is the first of a new environment, which goes on with the generator of the one before:
    its walker keeps the world, and with it an order of contacts that no seed determines.
    """
    pytest.importorskip("Box2D", reason="comes with penstock-rl[test] where it has wheels")
    pool = native.make(name, num_envs, autoreset_mode="Disabled", **settings)
    theirs = [gymnasium.make(name, **settings) for _ in range(num_envs)]
    observation, _ = pool.reset(seed=list(range(num_envs)))
    for i, env in enumerate(theirs):
        assert np.array_equal(env.reset(seed=i)[0], observation[i])
    ends = set()
    for action in actions_of(pool, steps, seed=num_envs):
        chosen = land(observation) if lands else action
        observation, reward, terminated, truncated, _ = pool.step(chosen)
        for i, env in enumerate(theirs):
            expected = env.step(int(chosen[i]) if chosen.ndim == 1 else chosen[i])
            assert np.array_equal(expected[0], observation[i])
            assert expected[1:4] == (reward[i], terminated[i], truncated[i])
        ended = terminated | truncated
        if ended.any():
            ends |= set(reward[ended].tolist())
            observation, _ = pool.reset(options={"reset_mask": ended})
            for i in np.flatnonzero(ended):
                generator = theirs[i].unwrapped.np_random
                theirs[i] = gymnasium.make(name, **settings)
                theirs[i].unwrapped.np_random = generator
                assert np.array_equal(theirs[i].reset()[0], observation[i])
    return ends


@pytest.mark.parametrize("settings", [{}, WIND], ids=["still", "wind"])
@pytest.mark.parametrize("name", LANDERS)
def test_a_lander_is_gymnasiums(name: str, settings: dict[str, float]):
    """Observations, rewards and ends over 6,000 steps of 4 environments, crashes among them."""
    assert -100.0 in same_as_gymnasium(name, 4, 1500, **settings)


def test_a_lander_that_lands_is_gymnasiums():
    """Episodes that end because all has come to rest, with a reward of 100."""
    assert 100.0 in same_as_gymnasium("LunarLander-v3", 8, 800, lands=True)


@pytest.mark.parametrize("name", WALKERS)
def test_a_walker_is_gymnasiums(name: str):
    """Also where it falls: 12,000 steps of 6 environments, with pits, stumps and stairs in the hardcore one."""
    assert -100.0 in same_as_gymnasium(name, 6, 2000)


@pytest.mark.parametrize("name", LANDERS + WALKERS)
def test_a_saved_state_continues_with_the_same_bits(name: str):
    """In another pool, at every hundredth step of 1,200, with resets on the way; and it saves as what it was."""
    settings = WIND if name in LANDERS else {}
    first, second = (native.make(name, 8, num_threads=threads, **settings) for threads in (1, 2))
    first.reset(seed=5)
    second.reset(seed=6)
    actions = actions_of(first, 1200, seed=0)
    for index, action in enumerate(actions):
        if index % 100 == 50:
            saved = first.save()
            second.restore(saved)
            again = second.save()
            assert all(np.array_equal(saved[column], again[column]) for column in saved)
        mine = first.step(action)
        if index >= 50:
            for one, other in zip(mine[:4], second.step(action)[:4], strict=True):
                assert np.array_equal(one, other)


@pytest.mark.parametrize("name", LANDERS + WALKERS)
def test_an_episode_is_a_function_of_its_seed(name: str):
    """A pool that was stepped before plays what a new one plays, in every autoreset mode."""
    for mode in ("NextStep", "SameStep"):
        old, new = (native.make(name, 3, autoreset_mode=mode) for _ in range(2))
        old.reset(seed=0)
        for action in actions_of(old, 150, seed=1):
            old.step(action)
        assert np.array_equal(old.reset(seed=9)[0], new.reset(seed=9)[0])
        for action in actions_of(old, 300, seed=2):
            for one, other in zip(old.step(action)[:4], new.step(action)[:4], strict=True):
                assert np.array_equal(one, other)


def test_a_setting_out_of_range_is_refused():
    """As Gymnasium refuses a gravity that does not pull down."""
    with pytest.raises(ValueError, match="gravity must be between -12 and 0"):
        native.make("LunarLander-v3", 1, gravity=1.0)


def test_a_state_that_is_none_is_refused():
    """Before anything is changed."""
    pool = native.make("LunarLander-v3", 1)
    pool.reset(seed=0)
    saved = pool.save()
    broken = {**saved, "state": np.where(saved["state"] == saved["state"], 1e9, 0.0)}
    with pytest.raises(ValueError, match="the state's state of environment 0 cannot be loaded"):
        pool.restore(broken)
    assert np.array_equal(pool.save()["state"], saved["state"])
