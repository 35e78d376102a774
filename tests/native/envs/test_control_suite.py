"""The control suite's tasks equal bare `mj_step` on the same models, with rewards and observations of their own, by ==.

`benchmarks/pool/control_suite.py` compares them with dm_control itself.
"""

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from penstock import native
from penstock.native.pool import control_suite

pytest.importorskip("mujoco", reason="comes with penstock-rl[mujoco]")
if not control_suite.available():
    pytest.skip("the suite's models come with penstock-rl[dm]", allow_module_level=True)

from ...support.environments.control_suite import Reference
from ...support.slow import slow_after

SIMPLE = [
    name
    for name in control_suite.IDS
    if name.split("/")[1].split("-")[0] in ("acrobot", "cartpole", "fish", "hopper", "lqr", "pendulum", "walker")
]
"""Tasks whose episodes begin without a search for a place, so that it can be made again."""
KINDS = [
    *(f"dmc/{domain}-{tasks[0]}" for domain, tasks in control_suite.TASKS.items()),
    *("dmc/finger-turn_easy", "dmc/fish-swim", "dmc/point_mass-hard", "dmc/quadruped-fetch", "dmc/quadruped-escape"),
]
"""One task for each kind of state."""
STEPS = int(os.environ.get("PENSTOCK_EQUALITY_STEPS", "40"))


@pytest.fixture(autouse=True)
def _log_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """MuJoCo writes its warnings to a file in the working directory."""
    monkeypatch.chdir(tmp_path)


def actions_of(pool: native.Pool, steps: int, seed: int = 0) -> np.ndarray:
    """Random actions [steps, num_envs, controls], some of them beyond the bounds: they are clipped."""
    shape = (steps, pool.num_envs, *pool.single_action_space.shape)
    return np.random.default_rng(seed).uniform(-1.2, 1.2, shape).astype(np.float32)


def assert_equal_to_reference(env_id: str, steps: int) -> None:
    pool, reference = native.make(env_id, 1, max_episode_steps=-1), Reference(env_id.removeprefix("dmc/"))
    observation, _ = pool.reset(seed=5)
    reference.load(pool.save()["state"][0])
    assert np.array_equal(observation[0], reference.observe())
    for step, action in enumerate(actions_of(pool, steps)):
        observation, reward, terminated, truncated, _ = pool.step(action)
        reference.step(action[0])
        assert np.array_equal(observation[0], reference.observe()), step
        assert reward[0] == reference.reward(), step
        assert not terminated[0]
        assert not truncated[0]
    pool.close()


@pytest.mark.parametrize("env_id", KINDS)
def test_task_equals_bare_mujoco(env_id: str):
    """Observations and rewards, step for step from the pool's own initial state, under random actions."""
    assert_equal_to_reference(env_id, STEPS)


def test_the_task_is_the_ids_and_no_setting():
    """It would step another task than the one that a run names; the pool's own description has it."""
    assert native.setting_types("dmc/cartpole-balance") == {}
    said = "dmc/cartpole-balance has no configuration field 'task'; its fields: none"
    with pytest.raises(ValueError, match=said):
        native.make("dmc/cartpole-balance", 1, task=1)
    with closing(native.make("dmc/cartpole-balance", 1)) as pool:
        with pytest.raises(ValueError, match=said):
            pool.configure(task=1)
        with closing(gymnasium.make_vec(pool.spec)) as again:
            assert again.config == pool.config


@pytest.mark.slow
@pytest.mark.parametrize("env_id", control_suite.IDS)
def test_task_equals_bare_mujoco_over_a_whole_episode(env_id: str):
    """For 1,000 steps."""
    assert_equal_to_reference(env_id, 1000)


@pytest.mark.parametrize("env_id", SIMPLE)
def test_an_episode_begins_with_the_forward_dynamics_without_actuators(env_id: str):
    """From positions and velocities alone follow the first observation, and all that the first steps depend on."""
    pool, reference = native.make(env_id, 1), Reference(env_id.removeprefix("dmc/"))
    observation, _ = pool.reset(seed=3)
    state, model = pool.save()["state"][0], reference.model
    reference.load_own(state[len(state) - reference.own_size :])
    reference.begin(state[1 : 1 + model.nq], state[1 + model.nq : 1 + model.nq + model.nv])
    assert np.array_equal(observation[0], reference.observe())
    for action in actions_of(pool, 20):
        observation, reward, *_ = pool.step(action)
        reference.step(action[0])
        assert np.array_equal(observation[0], reference.observe())
        assert reward[0] == reference.reward()


@pytest.mark.parametrize("env_id", control_suite.IDS)
def test_spaces_and_limits(env_id: str):
    """Observations are unbounded float64, actions float32 within the controls' bounds, if any; 1,000 steps.

    Frames of each step show real time, at the rate of the suite's controls.
    """
    pool, reference = native.make(env_id, 1), Reference(env_id.removeprefix("dmc/"))
    action = pool.single_action_space
    assert np.array_equal(np.stack([action.low, action.high]), np.float32(reference.bounds))
    assert pool.single_observation_space.shape == reference.observe().shape
    assert pool.single_observation_space.dtype == np.float64
    assert np.isinf(pool.single_observation_space.high).all()
    limit = None if reference.domain == "lqr" else 1000
    assert pool.environment["max_episode_steps"] == control_suite.MAX_EPISODE_STEPS[env_id] == limit
    seconds = reference.steps * reference.model.opt.timestep
    assert pool.metadata["render_fps"] == round(1 / seconds)


def test_time_truncates_and_a_new_episode_begins():
    """The time limit never terminates; the observation after it is a reset's."""
    pool = native.make("dmc/pendulum-swingup", 2, max_episode_steps=3, autoreset_mode="SameStep")
    pool.reset(seed=0)
    for _ in range(3):
        observation, _, terminated, truncated, infos = pool.step(np.zeros((2, 1), np.float32))
    assert not terminated.any()
    assert truncated.all()
    assert (infos["final_obs"][0] != observation[0]).any()
    assert (observation[:, 2] == 0).all()  # the pendulum is at rest


@pytest.mark.parametrize("env_id", slow_after(8, KINDS))
def test_restored_pool_resumes_bit_for_bit(env_id: str):
    """In a used and in a new pool, over the end of an episode: targets and sensors are part of the state."""
    pools = [native.make(env_id, 2, 1, 12) for _ in range(3)]
    actions = actions_of(pools[0], 24)
    for index, pool in enumerate(pools[:2]):
        pool.reset(seed=index)
    for action in actions[:7]:
        pools[0].step(action)
    for action in actions[:3]:
        pools[1].step(action)
    state = pools[0].save()
    for pool in pools[1:]:
        pool.restore(state)
        assert np.array_equal(pool.observation, pools[0].observation)
    for action in actions[7:]:
        wanted = pools[0].step(action)
        for pool in pools[1:]:
            assert all(np.array_equal(one, two) for one, two in zip(wanted[:4], pool.step(action)[:4], strict=True))
    saved = [pool.save() for pool in pools]
    assert all(saved[0][name].tobytes() == other[name].tobytes() for other in saved[1:] for name in saved[0])


@pytest.mark.parametrize("env_id", ["dmc/humanoid-run", "dmc/reacher-easy", "dmc/quadruped-walk"])
def test_seeds_alone_decide_whatever_the_number_of_threads(env_id: str):
    """One thread and three; another seed is another episode."""
    pools = [native.make(env_id, 5, threads, 10, "SameStep") for threads in (1, 3)]
    first, second = (pool.reset(seed=4)[0] for pool in pools)
    assert np.array_equal(first, second)
    assert len({row.tobytes() for row in first}) == 5
    for action in actions_of(pools[0], 25):
        one, three = (pool.step(action)[:4] for pool in pools)
        assert all(np.array_equal(a, b) for a, b in zip(one, three, strict=True))


def test_environments_have_targets_of_their_own():
    """A task changes targets in its environment's model alone, though the model is the pool's."""
    for name in (
        "reacher-easy",
        "finger-turn_easy",
        "swimmer-swimmer6",
        "fish-swim",
        "point_mass-hard",
        "stacker-stack_2",
        "lqr-lqr_6_2",
        "quadruped-escape",
    ):
        pool = native.make(f"dmc/{name}", 3)
        pool.reset(seed=1)
        state, reference = pool.save()["state"], Reference(name)
        own = state[:, -reference.own_size :]
        assert len({row.tobytes() for row in own}) == 3, name


def test_a_linear_system_at_rest_terminates():
    """As dm_control's: where positions and velocities are smaller than a millionth, and one step before it does not."""
    pool = native.make("dmc/lqr-lqr_2_1", 2, autoreset_mode="Disabled")
    pool.reset(seed=0)
    saved = pool.save()
    saved["state"][:, 1:5] = [[1e-5, 0, 0, 0], [1e-7, 0, 0, 0]]
    pool.restore(saved)
    _, reward, terminated, truncated, _ = pool.step(np.zeros((2, 1), np.float32))
    assert terminated.tolist() == [False, True]
    assert not truncated.any()
    assert (reward > 1 - 1e-9).all()


def test_initial_states_are_within_the_suites_ranges():
    """Equal in distribution to dm_control's, from another generator: ranges of joints, targets and angles."""
    pool = native.make("dmc/cartpole-balance", 200)
    pool.reset(seed=0)
    state = pool.save()["state"]
    assert (np.abs(state[:, 1]) <= 0.1).all()
    assert (np.abs(state[:, 2]) <= 0.034).all()
    assert 0.008 < state[:, 3:5].std() < 0.012
    pool, reference = native.make("dmc/reacher-easy", 200), Reference("reacher-easy")
    pool.reset(seed=0)
    targets = pool.save()["state"][:, -3 * reference.model.ngeom :].reshape(200, -1, 3)[
        :, reference.model.geom("target").id
    ]
    radii = np.hypot(targets[:, 0], targets[:, 1])
    assert 0.05 <= radii.min() < 0.07
    assert 0.18 < radii.max() <= 0.2
    pool, reference = native.make("dmc/humanoid-stand", 20), Reference("humanoid-stand")
    pool.reset(seed=0)
    for row in pool.save()["state"]:
        reference.load(row)
        assert reference.data.ncon == 0


def test_what_is_no_task_is_refused():
    """An unknown task, with similar ones."""
    with pytest.raises(
        ValueError, match=r"no environment is called 'dmc/cartpole-balanse'.*similar: dmc/cartpole-balance"
    ):
        native.make("dmc/cartpole-balanse", 1)


def run_alone(program: str) -> str:
    root = Path(native.__file__).parent.parent
    command = [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{program}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=150).stdout


def test_nothing_of_dm_control_is_imported():
    """Its folder is found, and no more."""
    out = run_alone("""
from penstock import native
native.make("dmc/cartpole-balance", 1).reset(seed=0)
print("dm_control" in sys.modules, "mujoco" in sys.modules)
""")
    assert out.split() == ["False", "False"]


def test_without_dm_control_the_error_names_the_extra():
    """Its tasks are then not listed, and Gymnasium's MuJoCo tasks are there all the same."""
    out = run_alone("""
sys.modules["dm_control"] = None
from penstock import native
print("dmc/cartpole-balance" in native.environment_ids(), "Ant-v5" in native.environment_ids())
try:
    native.make("dmc/cartpole-balance", 1)
except ModuleNotFoundError as error:
    print(error)
""")
    assert out.startswith(
        "False True\nthe control suite's models come with the package dm_control, and none is installed"
    )
    assert "pip install 'penstock-rl[dm]'" in out


def test_an_incomplete_folder_is_named(tmp_path: Path):
    """Files that are not there are listed, before anything is loaded."""
    (tmp_path / "dm_control" / "suite").mkdir(parents=True)
    (tmp_path / "dm_control" / "__init__.py").touch()
    out = run_alone(f"""
sys.path.insert(0, {str(tmp_path)!r})
from penstock import native
try:
    native.make("dmc/cartpole-balance", 1)
except ImportError as error:
    print(error)
""")
    assert "dm_control/suite has no acrobot.xml, ball_in_cup.xml, cartpole.xml" in out
    assert "expected those of dm_control 1.0.50" in out


def test_models_of_another_structure_are_refused(tmp_path: Path):
    """A cheetah with a joint more, as another dm_control may have: its observation would not fit into its row."""
    suite = tmp_path / "dm_control" / "suite"
    shutil.copytree(control_suite._models(), suite, ignore=shutil.ignore_patterns("*.py", "tests", "dog_assets"))
    (tmp_path / "dm_control" / "__init__.py").touch()
    tail = '<body name="tail"><joint name="tail" axis="0 1 0" limited="false"/><geom type="sphere" size=".01"/></body>'
    cheetah = suite / "cheetah.xml"
    cheetah.write_text(cheetah.read_text().replace('<body name="bthigh"', f'{tail}<body name="bthigh"', 1))
    out = run_alone(f"""
sys.path.insert(0, {str(tmp_path)!r})
from penstock import native
for name in ("walker-walk", "cheetah-run"):
    try:
        print(native.make(f"dmc/{{name}}", 1).reset(seed=0)[0].shape)
    except RuntimeError as error:
        print(error)
""")
    fits, refused = out.splitlines()
    assert fits == "(1, 24)"
    assert (
        "cheetah.xml is not the model that dmc/cheetah-run was written for: 19 values to observe, expected 17"
        in refused
    )
