"""Frames of the control suite's tasks are those of its own models, with each environment's own targets and ground."""

from pathlib import Path

import numpy as np
import pytest

from penstock import native
from penstock.native.pool import control_suite

from ...support.processes.drawing import drawn

pytest.importorskip("mujoco", reason="comes with penstock-rl[mujoco]")
if not control_suite.available():
    pytest.skip("the suite's models come with penstock-rl[dm]", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[3]
FRAMES = """
import numpy as np
from penstock import native
single = native.SingleEnv("dmc/walker-walk", render_mode="rgb_array")
single.reset(seed=0)
print(single.render().shape)
single.close()

import mujoco
from tests.support.environments.control_suite import Reference

for name in ("cartpole-balance", "reacher-easy", "quadruped-escape"):
    pool = native.make(f"dmc/{name}", 2, render_mode="rgb_array")
    pool.reset(seed=1)
    pool.step(np.zeros((2, *pool.single_action_space.shape), np.float32))
    same = []
    for frame, state in zip(pool.render(), pool.save()["state"]):
        reference = Reference(name)
        reference.load(state)
        mujoco.mj_forward(reference.model, reference.data)
        with mujoco.Renderer(reference.model, 240, 320) as renderer:
            renderer.update_scene(reference.data, camera=0)
            same.append(np.array_equal(frame, renderer.render()))
    print(name, same, frame.shape, frame.dtype, pool.metadata["render_fps"], frame.std() > 5)
    pool.close()

deep = native.make("dmc/quadruped-escape", 1, render_mode="depth_array")
deep.reset(seed=1)
reference = Reference("quadruped-escape")
reference.load(deep.save()["state"][0])
mujoco.mj_forward(reference.model, reference.data)
with mujoco.Renderer(reference.model, 240, 320) as renderer:
    renderer.enable_depth_rendering()
    renderer.update_scene(reference.data, camera=0)
    (frame,) = deep.render()
    print(np.array_equal(frame, renderer.render()), frame.shape, frame.dtype, frame.std() > 1)
"""


@pytest.mark.slow
def test_frames_equal_those_of_the_suites_models():
    """Pixel for pixel, of each environment of a pool; of one alone too, and depths."""
    done = drawn(FRAMES)
    assert done.stdout.splitlines() == [
        "(240, 320, 3)",
        "cartpole-balance [True, True] (240, 320, 3) uint8 100 True",
        "reacher-easy [True, True] (240, 320, 3) uint8 50 True",
        "quadruped-escape [True, True] (240, 320, 3) uint8 50 True",
        "True (240, 320) float32 True",
    ], done.stderr


def test_a_state_of_another_task_is_refused(tmp_path: Path):
    """Before a file is written."""
    with pytest.raises(ValueError, match="dmc/cartpole-balance: a state of 3 values, expected"):
        control_suite.save_model("dmc/cartpole-balance", np.zeros(3), tmp_path / "model.mjb")
    assert not list(tmp_path.iterdir())


def test_there_are_no_windows():
    """A window of MuJoCo's own is not offered."""
    with pytest.raises(ValueError, match="render_mode is 'human', expected 'rgb_array' or 'depth_array'"):
        native.SingleEnv("dmc/cartpole-balance", render_mode="human")
