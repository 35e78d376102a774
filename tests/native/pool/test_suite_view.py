"""MuJoCo's view of the control suite's tasks: `model`, `data` and `set_state`, held against the suite's own models."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import native
from penstock.native.pool import control_suite
from penstock.native.pool.mujoco_data import MujocoView

mujoco = pytest.importorskip("mujoco", reason="comes with penstock-rl[mujoco]")
if not control_suite.available():
    pytest.skip("the suite's models come with penstock-rl[dm]", allow_module_level=True)

from ...support.environments.control_suite import Reference  # noqa: E402  (imports mujoco)

NAMES = ("cartpole-balance", "reacher-easy", "fish-swim", "quadruped-escape")
"""A task with one model for all, two whose target is drawn (fish has sensors too), and one whose ground is drawn."""


def stepped(name: str):
    """A pool of two environments after three steps, and its view."""
    pool = native.make(f"dmc/{name}", 2)
    pool.reset(seed=1)
    for _ in range(3):
        pool.step(np.full((2, *pool.single_action_space.shape), 0.1, np.float32))
    return pool, MujocoView(pool)


@pytest.mark.parametrize("name", NAMES)
def test_data_are_those_of_each_environments_model(name: str):
    """Places of bodies, sensors as the environment has them, and targets and ground that were drawn for it."""
    pool, view = stepped(name)
    states = pool.save()["state"]
    for index in (1, 0):
        data, reference = view.data(index), Reference(name)
        reference.load(states[index])
        sensors = reference.data.sensordata.copy()
        mujoco.mj_forward(reference.model, reference.data)
        for array in ("time", "qpos", "qvel", "ctrl", "xpos", "xmat", "cvel", "qacc"):
            assert np.array_equal(getattr(data, array), getattr(reference.data, array)), array
        assert np.array_equal(data.sensordata, sensors)
        for array in ("geom_pos", "hfield_data"):
            assert np.array_equal(getattr(data.model, array), getattr(reference.model, array)), array
    assert np.array_equal(view.qpos, [view.data(index).qpos for index in range(2)])
    assert np.array_equal(view.qvel, [view.data(index).qvel for index in range(2)])
    assert view.model.nq == view.qpos.shape[1]


@pytest.mark.parametrize("name", NAMES)
def test_steps_after_set_state_are_those_of_the_model_placed_there(name: str):
    """Observations and rewards; each environment keeps its own target or ground."""
    pool, view = stepped(name)
    references = [Reference(name) for _ in range(2)]
    qpos, qvel = view.qpos, view.qvel + 0.01
    for reference, state, positions, velocities in zip(references, pool.save()["state"], qpos, qvel, strict=True):
        reference.load(state)
        reference.data.qpos[:], reference.data.qvel[:] = positions, velocities
        mujoco.mj_forward(reference.model, reference.data)
    view.set_state(qpos, qvel)
    assert np.array_equal(view.qvel, qvel)
    assert np.array_equal(pool.observation, [reference.observe() for reference in references])
    for _ in range(3):
        action = np.full((2, *pool.single_action_space.shape), -0.2, np.float32)
        observation, reward, *_ = pool.step(action)
        for reference in references:
            reference.step(action[0])
        assert np.array_equal(observation, [reference.observe() for reference in references])
        assert np.array_equal(reward, [reference.reward() for reference in references])


def test_a_single_environment_has_the_names_of_gymnasiums():
    """Its step's length is the control's, of several of MuJoCo's."""
    single = native.SingleEnv("dmc/walker-walk")
    with pytest.raises(AttributeError, match=r"no attribute 'model' now: .*reset"):
        single.model  # noqa: B018
    single.reset(seed=3)
    assert (single.dt, single.model.opt.timestep) == (0.025, 0.0025)
    assert np.array_equal(single.init_qpos, single.model.qpos0)
    single.set_state(single.init_qpos, single.init_qvel)
    assert np.array_equal(single.data.qpos, single.init_qpos)
    assert not single.data.qvel.any()
