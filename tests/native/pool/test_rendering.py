"""Frames are Gymnasium's, pixel for pixel, or what a header draws."""

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

MODES = {env_id: native.make(env_id, 1).metadata["render_modes"] for env_id in native.environment_ids()}
DRAWN = [env_id for env_id, modes in MODES.items() if modes == ["human", "rgb_array"]]
"""Classic control; test_mujoco_data.py and test_mujoco_scenes.py have MuJoCo's tasks, which need OpenGL."""
DRAW_THEMSELVES = [
    env_id for env_id, modes in MODES.items() if modes == ["rgb_array"] and not env_id.startswith("dmc/")
]


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
    with pytest.raises(ValueError, match=r"cannot be drawn.*a header that has `frame` and `draw` can be"):
        native.make("PositionOnlyCartPole-v0", 2, render_mode="rgb_array")
    with pytest.raises(ValueError, match="render_mode is 'human', expected 'rgb_array'"):
        native.SingleEnv("ConnectFour-v0", render_mode="human")
    with pytest.raises(ValueError, match="CartPole-v1 does not draw itself"):
        native.make("CartPole-v1", 2).picture(0)
    drawn = native.make("ConnectFour-v0", 2, render_mode="rgb_array")
    with pytest.raises(RuntimeError, match="not every environment is ready"):
        drawn.render()
    drawn.reset(seed=0)
    with pytest.raises(IndexError, match="environment 2 is none of 2"):
        drawn.picture(2)


def test_which_environments_draw_themselves():
    """Teams, boards, grids and toy text."""
    others = [env_id for env_id in DRAW_THEMSELVES if not env_id.startswith(("MiniGrid-", "toy/"))]
    assert others == ["ConnectFour-v0", "simple_spread_continuous_v3", "simple_spread_v3"]
    assert len(DRAW_THEMSELVES) == len(others) + 46 + 7


PAINTED = [env_id for env_id in DRAW_THEMSELVES if not env_id.startswith("MiniGrid-")]


@pytest.mark.parametrize("env_id", [*PAINTED, "MiniGrid-DoorKey-8x8-v0"])
def test_pictures_follow_from_the_state(env_id: str):
    """Equal seeds give equal pictures, steps change them, and a pickled pool draws what the first one does."""
    pools = [native.make(env_id, 3, autoreset_mode="SameStep", render_mode="rgb_array") for _ in range(2)]
    for pool in pools:
        pool.reset(seed=4)
    first, same = (pool.render() for pool in pools)
    assert {picture.dtype for picture in first} == {np.dtype(np.uint8)}
    assert all(picture.shape[2] == 3 and len(np.unique(picture)) > 2 for picture in first)
    assert all(np.array_equal(*pair) for pair in zip(first, same, strict=True))
    pools[0].action_space.seed(0)
    for _ in range(2):
        pools[0].step(pools[0].action_space.sample())
    after = pools[0].render()
    assert not all(np.array_equal(*pair) for pair in zip(first, after, strict=True))
    copy = pickle.loads(pickle.dumps(pools[0]))
    assert all(np.array_equal(*pair) for pair in zip(copy.call("render"), after, strict=True))


def test_one_environment_draws_itself():
    """Through `gymnasium.make`: nothing before the first reset, then a picture that Gymnasium's checker accepts."""
    env = gymnasium.make("penstock/ConnectFour-v0", render_mode="rgb_array")
    assert env.unwrapped.render() is None
    env.reset(seed=0)
    assert env.render().shape == (192, 224, 3)
    env.close()


@pytest.mark.slow
def test_shapes_lie_where_a_header_puts_them():
    """A rectangle, a disc and a line, cut off at the picture's borders."""
    header = """
#include <penstock/library.hpp>
struct Painter {
  static constexpr penstock::Info info{.id = "Painter-v0", .max_episode_steps = 5};
  static constexpr penstock::Discrete<2> action{};
  static constexpr auto observation = penstock::Box<1>::symmetric({1.0});
  struct Config { PENSTOCK_FIELDS(Config) } config;
  struct State { double luck; PENSTOCK_FIELDS(State, luck) } state;
  void reset(penstock::Rng& rng) { state.luck = rng.random(); }
  penstock::Step step(std::int64_t) { return {}; }
  void observe(std::span<float, 1> out) const { out[0] = float(state.luck); }
  static constexpr penstock::FrameSize frame{.height = 8, .width = 10};
  void draw(penstock::Canvas& canvas) const {
    canvas.rectangle(-3, -3, 5, 4, {255, 0, 0});
    canvas.disc(9.5, 7.5, 1, {0, 255, 0});
    canvas.line(2.5, 4.5, 6.5, 4.5, 1, {0, 0, 255});
    canvas.disc(1e300, 0.0 / (state.luck - state.luck), 1, {1, 2, 3});
  }
};
PENSTOCK_LIBRARY(Painter)
"""
    pool = native.load(header, flags=["-O0"]).make(1, render_mode="rgb_array")
    pool.reset(seed=0)
    (picture,) = pool.render()
    wanted = np.full((8, 10, 3), 255, np.uint8)
    wanted[0, :2] = [255, 0, 0]
    wanted[7, 8:] = wanted[6, 9] = [0, 255, 0]
    wanted[4, 2:7] = [0, 0, 255]
    np.testing.assert_array_equal(picture, wanted)
    with pytest.raises(native.CompileError, match="an environment that draws itself has the picture's size"):
        native.load(header.replace("FrameSize frame", "FrameSize size"), flags=["-O0"])


def test_the_action_that_is_drawn_is_the_latest():
    """Pendulum's picture shows the torque, however the step was asked for."""
    pool = native.make("Pendulum-v1", 2, render_mode="rgb_array")
    pool.async_reset(seed=1)
    pool.recv()
    pool.send(np.array([[1.5], [-0.5]], np.float32))
    pool.recv()
    assert pool._actions.tolist() == [[1.5], [-0.5]]
    pool.render()
    chosen = native.make("Pendulum-v1", 2, render_mode="rgb_array", autoreset_mode="Disabled")
    chosen.reset(seed=1)
    chosen.step_rows(np.array([[2.0]], np.float32), [1])
    assert chosen._actions.tolist() == [[0.0], [2.0]]
    chosen.render()
