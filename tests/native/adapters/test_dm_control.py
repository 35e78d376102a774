"""dm_control's suite: what its tasks give, and what is said where it does not run."""

import subprocess
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from penstock import native
from penstock.native.adapters import dm_control
from penstock.native.adapters.dm_control import SuiteTask, envpool_twin

from ...support.environments.rounds import assert_same, play

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


@pytest.mark.parametrize("task", ["cartpole-balance", "walker-walk", "stacker-stack_2"])
def test_structured_observations_equal_dm_controls_own(suite, task):
    """Each of its arrays is a leaf of its shape, single numbers and matrices too; a wrapper sees the dictionary."""
    seen_by_wrapper = []

    class Looking(gymnasium.ObservationWrapper):
        def observation(self, observation):
            seen_by_wrapper.append(observation)
            return observation

    env_id = f"dm_control/{task}"
    asked = {"one_array": True, "structured": True, "wrappers": (Looking,)}
    pool = native.make(env_id, 1, autoreset_mode="Disabled", **asked)
    leaves = pool.environment["observation"]["leaves"]
    own = suite.load(*task.split("-"), task_kwargs={"random": 6})
    moment, seen = own.reset(), pool.reset(seed=6)[0][0]
    pool.action_space.seed(0)
    for _ in range(20):
        first = 0
        assert {leaf["name"] for leaf in leaves} == set(moment.observation) == set(seen_by_wrapper[-1])
        for leaf in leaves:
            part = np.asarray(moment.observation[leaf["name"]])
            assert (leaf["shape"], leaf["dtype"], leaf["kind"]) == (part.shape, "float64", "numbers")
            np.testing.assert_array_equal(seen[first : first + part.size], part.ravel())
            first += part.size
        assert len(seen) == first
        action = pool.action_space.sample()
        seen, moment = pool.step(action)[0][0], own.step(action[0])


def test_a_structured_state_is_restored_by_the_same_actions(suite):
    """Over the ends of episodes too."""
    asked = {"one_array": True, "structured": True, "max_episode_steps": 3}
    pools = [native.make(BALANCE, 2, **asked) for _ in range(2)]
    actions = np.random.default_rng(0).uniform(-1, 1, (7, 2, 1)).astype(np.float32)
    pools[0].reset_ids(np.array([2**40, 9], np.uint64))
    play(pools[0], actions)
    pools[1].restore(pools[0].save())
    assert_same(*(play(pool, actions) for pool in pools))


class StandIn:
    """A task, as dm_control has it, that counts its steps in a number and a matrix."""

    _step_limit = 5.0

    def action_spec(self):
        return SimpleNamespace(minimum=-np.ones(1), maximum=np.ones(1))

    def observation_spec(self):
        return {name: SimpleNamespace(shape=np.shape(part)) for name, part in self._seen(0).items()}

    def reset(self):
        self.steps = 0
        return self._moment(None)

    def step(self, action):
        self.steps += 1
        return self._moment(1.0)

    def _moment(self, reward):
        over = self.steps == self._step_limit
        return SimpleNamespace(observation=self._seen(self.steps), reward=reward, discount=1.0, last=lambda: over)

    def _seen(self, steps):
        return {"speed": np.full((2, 2), steps, np.float64), "height": steps / 3}


def test_leaves_are_dm_controls_arrays_on_any_mujoco(monkeypatch):
    """A stand-in observes a number and a matrix; without `structured` they are one array in dm_control's order."""
    suite = SimpleNamespace(ALL_TASKS=(("cartpole", "balance"),), load=lambda *_, **__: StandIn())
    monkeypatch.setattr(dm_control, "_suite", lambda _: suite)
    pool = native.make(BALANCE, 1, autoreset_mode="Disabled", one_array=True, structured=True)
    leaves = pool.environment["observation"]["leaves"]
    assert [(leaf["name"], leaf["shape"], leaf["dtype"]) for leaf in leaves] == [
        ("height", (), "float64"),
        ("speed", (2, 2), "float64"),
    ]
    assert pool.reset(seed=0)[0].tolist() == [[0.0] * 5]
    assert pool.step(np.zeros((1, 1)))[0].tolist() == [[1 / 3, 1.0, 1.0, 1.0, 1.0]]
    plain = native.make(BALANCE, 1, one_array=True)
    assert plain.environment["observation"] == {"dtype": "float64", "shape": (5,)}
    plain.reset(seed=0)
    assert plain.step(np.zeros((1, 1)))[0].tolist() == [[1.0, 1.0, 1.0, 1.0, 1 / 3]]


@pytest.mark.parametrize("source", ["info", "observation"])
def test_a_mask_is_refused(suite, source):
    """The suite's actions are vectors."""
    with pytest.raises(ValueError, match=r"action_mask: the actions are Box.* expected Discrete ones; leave it out"):
        native.make(BALANCE, 1, one_array=True, action_mask=source)


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
