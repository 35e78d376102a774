"""MuJoCo's view of a pool: what Gymnasium's environments show as `data` and `model`, `set_state`, and frames."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from penstock import native
from penstock.native.pool.mujoco_data import FRAMES_PER_SECOND, SAVED_ARRAYS, MujocoView
from penstock.native.registry.single_env import SingleEnv

from ...support.processes.drawing import drawn

pytest.importorskip("mujoco", reason="comes with penstock-rl[mujoco]")
pytest.importorskip("imageio", reason="Gymnasium's MuJoCo environments import it; it comes with penstock-rl[test]")


@pytest.fixture(autouse=True)
def _log_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """MuJoCo writes its warnings to a file in the working directory."""
    monkeypatch.chdir(tmp_path)


def both(env_id: str, steps: int = 5) -> tuple[SingleEnv, Any]:
    """Return our environment and Gymnasium's after the same steps."""
    ours, theirs = SingleEnv(env_id), gymnasium.make(env_id).unwrapped
    ours.reset(seed=3)
    theirs.reset(seed=3)
    generator = np.random.default_rng(0)
    for _ in range(steps):
        action = generator.uniform(-1, 1, theirs.action_space.shape).astype(np.float32)
        ours.step(action)
        theirs.step(action)
    return ours, theirs


@pytest.mark.parametrize("env_id", SAVED_ARRAYS)
def test_data_and_model_are_those_of_gymnasium(env_id: str):
    """Coordinates, forces and what the state holds of arrays; what MuJoCo computes from them; facts of the model."""
    ours, theirs = both(env_id)
    data = ours.data
    for name in ("time", "qpos", "qvel", "ctrl", *SAVED_ARRAYS[env_id]):
        if name not in {"xpos", "xipos", "cinert", "cvel"}:  # which are of the last substep's beginning there
            assert np.array_equal(getattr(data, name), getattr(theirs.data, name)), name
    view = MujocoView(ours._pool)
    assert np.array_equal(view.qpos[0], theirs.data.qpos)
    assert np.array_equal(view.qvel[0], theirs.data.qvel)
    assert ours.model.nbody == theirs.model.nbody
    assert np.array_equal(ours.init_qpos, theirs.model.qpos0)  # Pusher-v5 of Gymnasium writes into its init_qpos
    assert np.array_equal(ours.init_qvel, theirs.init_qvel)
    assert ours.dt == theirs.dt
    data.qpos[:] = 0
    assert np.array_equal(ours.data.qpos, theirs.data.qpos)


@pytest.mark.parametrize("env_id", SAVED_ARRAYS)
def test_set_state_equals_that_of_gymnasium(env_id: str):
    """The same observations and rewards in the steps that follow."""
    ours, theirs = both(env_id)
    qpos, qvel = theirs.init_qpos + 0.01, theirs.init_qvel - 0.02
    ours.set_state(qpos, qvel)
    theirs.set_state(qpos, qvel)
    assert np.array_equal(ours._pool.observation[0], theirs._get_obs())
    for _ in range(5):
        action = np.full(theirs.action_space.shape, 0.3, np.float32)
        observation, reward, terminated, *_ = ours.step(action)
        expected = theirs.step(action)
        assert np.array_equal(observation, expected[0])
        assert (reward, terminated) == expected[1:3]
        if terminated:
            break


def test_robots_of_a_pool_are_placed():
    """Each its own place; other shapes, and numbers that are not finite, are refused and change nothing."""
    pool = native.make("HalfCheetah-v5", 3)
    pool.reset(seed=0)
    view = MujocoView(pool)
    qpos = np.arange(27.0).reshape(3, 9) / 100
    view.set_state(qpos, np.zeros(9))
    assert np.array_equal(view.qpos, qpos)
    assert np.array_equal(pool.observation[:, :8], qpos[:, 1:])
    with pytest.raises(ValueError, match=r"qpos needs the shape \(3, 9\), or \(9,\) for all environments; got \(8,\)"):
        view.set_state(np.zeros(8), np.zeros(9))
    with pytest.raises(ValueError, match="qvel must be finite numbers"):
        view.set_state(qpos, np.full(9, np.nan))
    assert np.array_equal(view.qpos, qpos)
    with pytest.raises(ValueError, match="CartPole-v1 has no MuJoCo model"):
        MujocoView(native.make("CartPole-v1", 1))


@pytest.mark.parametrize("env_id", SAVED_ARRAYS)
def test_rates_of_frames_are_those_of_gymnasium(env_id: str):
    """Videos of a task are played at this rate."""
    theirs = gymnasium.make(env_id)
    assert native.make(env_id, 1).metadata["render_fps"] == theirs.metadata["render_fps"] == FRAMES_PER_SECOND[env_id]


FRAMES = """
import gymnasium
import numpy as np
from penstock import native

for mode in ("rgb_array", "depth_array"):
    ours = native.SingleEnv("InvertedPendulum-v5", render_mode=mode)
    theirs = gymnasium.make("InvertedPendulum-v5", render_mode=mode)
    pool = native.make("InvertedPendulum-v5", 2, render_mode=mode)
    ours.reset(seed=5)
    theirs.reset(seed=5)
    pool.reset(seed=[5, 6])
    first = pool.render()
    same = [np.array_equal(ours.render(), theirs.render()), np.array_equal(first[0], theirs.render())]
    for _ in range(5):
        pool.step(np.full((2, 1), 3.0, np.float32))
    print(mode, same, len(first), np.array_equal(pool.render()[1], first[1]), first[1].shape, first[1].dtype)

# Each environment of a pool has a camera of its own, which stays where its first frame put it.
from gymnasium.vector import SyncVectorEnv
pool = native.make("Ant-v5", 2, render_mode="rgb_array")
sync = SyncVectorEnv([lambda: gymnasium.make("Ant-v5", render_mode="rgb_array")] * 2)
same = []
for seeds in ([1, 2], [3, 4]):
    for env in (pool, sync):
        env.reset(seed=seeds)
    same += [np.array_equal(*pair) for pair in zip(pool.render(), sync.render())]
print(all(same))
"""


@pytest.mark.slow
def test_frames_equal_those_of_gymnasium():
    """After a reset, pixel for pixel; of each environment of a pool, and others after some steps."""
    done = drawn(FRAMES)
    assert done.stdout.splitlines() == [
        "rgb_array [True, True] 2 False (480, 480, 3) uint8",
        "depth_array [True, True] 2 False (480, 480) float32",
        "True",
    ], done.stderr
