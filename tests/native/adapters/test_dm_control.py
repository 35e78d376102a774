"""dm_control's suite: what its tasks give, and what is said where it does not run."""

import subprocess
import sys

import numpy as np
import pytest

from penstock import native
from penstock.native.adapters.dm_control import SuiteTask, envpool_twin

BALANCE = "dm_control/cartpole-balance"


@pytest.fixture(name="suite")
def _suite():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUJOCO_GL", "disable")
        pytest.importorskip("dm_control", reason="comes with penstock-rl[dm-control], which needs MuJoCo 3")
        try:
            SuiteTask(BALANCE)
        except ValueError as error:
            pytest.skip(str(error))
        from dm_control import suite

        yield suite


@pytest.mark.parametrize("task", ["cartpole-balance", "lqr-lqr_2_1", "walker-walk"])
def test_tasks_equal_dm_controls_own(suite, task):
    """Observations one after the other, rewards and ends, for the same seed; also where a model is drawn at random."""
    pool = native.make(f"dm_control/{task}", 1, autoreset_mode="Disabled")
    own = suite.load(*task.split("-"), task_kwargs={"random": 6})
    moment = own.reset()
    seen = pool.reset(seed=6)[0][0]
    pool.action_space.seed(0)
    for _ in range(30):
        np.testing.assert_array_equal(seen, np.concatenate([np.ravel(part) for part in moment.observation.values()]))
        action = np.clip(pool.action_space.sample(), -1, 1)
        got, moment = pool.step(action), own.step(action[0])
        seen = got[0][0]
        assert got[1][0] == moment.reward
        assert not (got[2] | got[3]).any()


def test_an_end_by_time_is_a_truncation(suite):
    """After the task's own 1,000 steps, or a limit that was asked for."""
    assert native.make(BALANCE, 1).environment["max_episode_steps"] == 1000
    pool = native.make(BALANCE, 1, max_episode_steps=4)
    pool.reset(seed=0)
    flags = [pool.step(np.zeros((1, 1)))[2:4] for _ in range(4)]
    assert [[bool(flag[0]) for flag in step] for step in flags] == [[False, False]] * 3 + [[False, True]]


def test_a_task_that_draws_by_opengl_says_so_where_there_is_none(suite):
    """With what helps: its own error names neither the task nor a setting."""
    pool = native.make("dm_control/quadruped-escape", 1)
    with pytest.raises(ValueError, match=r"quadruped-escape draws.* MUJOCO_GL=egl, .* 'dmc/quadruped-escape'"):
        pool.reset(seed=0)


def test_mistakes_are_refused_by_name(suite):
    """A task that there is not, with similar ones; and settings, which the suite's tasks do not have."""
    said = r"no task 'dm_control/cartpole-balanse'; similar: dm_control/c.*; `penstock envs d.*/` lists all"
    with pytest.raises(ValueError, match=said):
        native.make("dm_control/cartpole-balanse", 1)
    with pytest.raises(ValueError, match="has no setting 'gravity'"):
        native.make(BALANCE, 1, gravity=3.0)


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("cartpole-balance", "CartpoleBalance-v1"),
        ("ball_in_cup-catch", "BallInCupCatch-v1"),
        ("humanoid_CMU-stand", "HumanoidCMUStand-v1"),
        ("lqr-lqr_2_1", "LqrLqr21-v1"),
    ],
)
def test_the_same_task_in_envpool_is_named(name, twin):
    """EnvPool has it, where it is installed."""
    assert envpool_twin(f"dm_control/{name}") == f"envpool/{twin}"
    envpool = pytest.importorskip("envpool", reason="comes with penstock-rl[envpool]")
    assert twin in envpool.list_all_envs()


STAND_IN = """
import importlib.metadata, sys, types
suite = types.ModuleType("dm_control.suite")
suite.ALL_TASKS = (("cartpole", "balance"),)
def load(domain, task, task_kwargs):
    raise AttributeError("'MjModel' object has no attribute 'flex_vertedge'")
suite.load = load
package = types.ModuleType("dm_control")
package.suite = suite
sys.modules.update({"dm_control": package, "dm_control.suite": suite})
real = importlib.metadata.version
versions = {"mujoco": "4.0.0", "dm_control": "1.0.50"}
importlib.metadata.version = lambda name: versions.get(name) or real(name)
from penstock.native import make
make("dm_control/cartpole-balance", 1)
"""


def test_with_mujoco_4_the_error_says_what_to_do():
    """The same task, stepped here or in EnvPool, or MuJoCo 3; a stand-in fails as dm_control 1.0.50 does."""
    result = subprocess.run([sys.executable, "-c", STAND_IN], capture_output=True, text=True, check=False)
    assert "dm_control 1.0.50 was made for MuJoCo 3, and 4.0.0 is installed" in result.stderr
    assert "choose environment.id = 'dmc/cartpole-balance', the same task stepped by Penstock" in result.stderr
    assert "or 'envpool/CartpoleBalance-v1', the same task in EnvPool" in result.stderr


def test_a_missing_package_is_named_with_its_extra():
    """Without dm_control."""
    code = f"import sys; sys.modules['dm_control'] = None; from penstock.native import make; make('{BALANCE}', 1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"{BALANCE} needs dm_control, and importing it failed" in result.stderr
    assert "pip install 'penstock-rl[dm-control]'; or choose an id of EnvPool" in result.stderr
