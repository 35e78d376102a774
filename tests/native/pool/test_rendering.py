"""Frames are Gymnasium's, pixel for pixel."""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformReward

from penstock import native

pytest.importorskip("pygame", reason="comes with penstock-rl[render]")

DRAWN = [
    env_id
    for env_id in native.environment_ids()
    if native.make(env_id, 1).metadata["render_modes"] == ["human", "rgb_array"]
]
"""Classic control; test_mujoco_data.py has MuJoCo's tasks, which need OpenGL."""


@pytest.fixture(autouse=True)
def no_display(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")


@pytest.mark.parametrize("env_id", DRAWN)
@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is -?infinity:UserWarning")
@pytest.mark.filterwarnings("ignore:.*we recommend using a symmetric and normalized space:UserWarning")
def test_gymnasium_checks_every_render_mode(env_id: str):
    """check_env with its check of rendering: every mode that the metadata names gives what it must, windows too."""
    check_env(native.SingleEnv(env_id, render_mode="rgb_array"))


@pytest.mark.parametrize("env_id", DRAWN)
def test_frames_equal_gymnasiums(env_id: str):
    """check_environments_match compares every frame, those after resets included."""
    options = {"render_mode": "rgb_array", "max_episode_steps": 25}
    theirs = TransformReward(gymnasium.make(env_id, **options), float)
    ours = gymnasium.make(f"penstock/{env_id}", **options)
    check_environments_match(theirs, ours, 60, seed=7)
    theirs.close()
    ours.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("env_id", DRAWN)
def test_pools_draw_as_sync_vector_env(env_id: str, mode: AutoresetMode):
    """A tuple of frames, before and after automatic resets; a pickled pool draws the same."""
    pool = native.make(env_id, 3, max_episode_steps=7, autoreset_mode=mode, render_mode="rgb_array")
    sync = SyncVectorEnv(
        [lambda: gymnasium.make(env_id, max_episode_steps=7, render_mode="rgb_array")] * 3, autoreset_mode=mode
    )
    assert pool.render_mode == sync.render_mode
    assert pool.metadata == sync.metadata
    pool.reset(seed=1)
    sync.reset(seed=1)
    pool.action_space.seed(0)
    for _ in range(16):
        ours, theirs = pool.render(), sync.render()
        assert isinstance(ours, tuple)
        assert all(np.array_equal(left, right) for left, right in zip(ours, theirs, strict=True))
        actions = pool.action_space.sample()
        pool.step(actions)
        sync.step(actions)
    copy = pickle.loads(pickle.dumps(pool))
    assert all(np.array_equal(left, right) for left, right in zip(copy.call("render"), pool.render(), strict=True))
    for env in (pool, copy, sync):
        env.close()


def test_configuration_is_drawn():
    """A longer pole is longer in the picture of its environment alone."""
    pool = native.make("CartPole-v1", 2, render_mode="rgb_array")
    pool.reset(seed=[1, 1])
    left, right = pool.render()
    assert np.array_equal(left, right)
    pool.set_attr("length", [0.5, 0.9])
    left, right = pool.render()
    assert not np.array_equal(left, right)


def test_environments_without_a_picture_are_reported():
    """A pool without a mode, a window for many, an unknown mode, a frame before the first reset."""
    pool = native.make("CartPole-v1", 2)
    with pytest.raises(RuntimeError, match="make it with render_mode='rgb_array'"):
        pool.render()
    with pytest.raises(ValueError, match=r"wrap it in gymnasium\.wrappers\.vector\.HumanRendering"):
        native.make("CartPole-v1", 2, render_mode="human")
    with pytest.raises(ValueError, match="render_mode is 'ansi', expected 'rgb_array'"):
        native.make("CartPole-v1", 2, render_mode="ansi")
    with pytest.raises(RuntimeError, match="not every environment is ready"):
        native.make("CartPole-v1", 2, render_mode="rgb_array").render()
    with pytest.raises(ValueError, match="ConnectFour-v0 cannot be drawn"):
        native.make("ConnectFour-v0", 2, render_mode="rgb_array")
