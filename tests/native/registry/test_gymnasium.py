"""Gymnasium's own judges on the single-environment face, and the ways by which Gymnasium makes environments."""

import json
import pickle
import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.utils.env_match import check_environments_match
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformReward

from penstock import native
from penstock.native.pool import mujoco_library

from ...support.environments.own_ids import OWN_IDS

SINGLE = [env_id for env_id in OWN_IDS if not native.make(env_id, 1).environment["agents"]]
TEAMS = [env_id for env_id in OWN_IDS if env_id not in SINGLE]
OTHERS = ("toy/", "MiniGrid-", "dmc/")
SHARED = [env_id for env_id in SINGLE if env_id in gymnasium.registry and not env_id.startswith(OTHERS)]


@pytest.mark.parametrize("env_id", SINGLE)
@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is -?infinity:UserWarning")
@pytest.mark.filterwarnings("ignore:.*we recommend using a symmetric and normalized space:UserWarning")
def test_gymnasium_checks_every_environment(env_id: str):
    """check_env finds no fault: spaces, seeds, determinism, returned types, spec, closing twice.

    What it advises against and every implementation of these environments does (bounds that are infinite or beyond 1)
    is let pass; any other warning fails.
    """
    check_env(native.SingleEnv(env_id), skip_render_check=True)


@pytest.mark.parametrize("env_id", SHARED)
def test_environments_match_gymnasiums(env_id: str):
    """check_environments_match over several episodes; over a part of one of MuJoCo's, which test_mujoco.py plays whole.

    Gymnasium's rewards are made Python floats first, which changes no value: Pendulum's are NumPy's. The values of the
    MuJoCo tasks' infos are compared where those tasks are tested: some of Gymnasium's are float32, integers or vectors.
    """
    theirs = TransformReward(gymnasium.make(env_id), float)
    ours = gymnasium.make(f"penstock/{env_id}")
    steps, infos = (150, "skip") if env_id in mujoco_library.IDS else (1500, "equivalence")
    check_environments_match(theirs, ours, steps, seed=7, info_comparison=infos)


@pytest.mark.parametrize("env_id", SHARED)
def test_generator_is_gymnasiums(env_id: str):
    """np_random has the state that Gymnasium's has after the same seed, resets and steps; it can be put back."""
    ours, theirs = native.SingleEnv(env_id), gymnasium.make(env_id).unwrapped
    for seed in (3, None, None):
        ours.reset(seed=seed)
        theirs.reset(seed=seed)
        assert ours.np_random.bit_generator.state["state"] == theirs.np_random.bit_generator.state["state"]
    assert ours.np_random_seed == theirs.np_random_seed == 3
    kept = ours.np_random
    expected = ours.reset()[0]
    ours.np_random = kept
    assert ours.np_random_seed == -1
    assert np.array_equal(ours.reset()[0], expected)


def test_a_generator_can_be_set_before_the_first_reset():
    """As Gymnasium's: the first episode is drawn from it, and no step is possible before a reset."""
    ours, theirs = native.SingleEnv("CartPole-v1"), gymnasium.make("CartPole-v1").unwrapped
    ours.np_random, theirs.np_random = np.random.default_rng(5), np.random.default_rng(5)
    with pytest.raises(ResetNeeded):
        ours.step(0)
    for _ in range(2):
        assert np.array_equal(ours.reset()[0], theirs.reset()[0])
    fresh = native.SingleEnv("CartPole-v1")
    with pytest.raises(TypeError, match="np_random must be a numpy Generator over PCG64"):
        fresh.np_random = 5
    assert fresh.np_random_seed != 0


def last_step(env: gymnasium.Env, *, most: int = 700) -> int:
    """In which step the episode of a constant action is truncated; 0 if it is not."""
    env.reset(seed=0)
    for step in range(1, most + 1):
        if env.step(env.action_space.sample() * 0)[3]:
            return step
    return 0


def test_gymnasium_owns_the_time_limit_that_it_adds():
    """gymnasium.make sets the limit that it was asked for, longer, shorter or none; there is no second limit."""
    assert gymnasium.spec("penstock/Pendulum-v1").max_episode_steps == 200
    for limit, expected in ((None, 200), (11, 11), (333, 333), (-1, 0)):
        env = gymnasium.make("penstock/Pendulum-v1", max_episode_steps=limit)
        assert last_step(env) == expected
        assert env.spec is not None
        assert env.spec.max_episode_steps == (expected or None)


def test_spec_makes_its_environment_again():
    """The spec of an environment that was made directly says its limit and configuration and makes the same again."""
    env = native.SingleEnv("Pendulum-v1", max_episode_steps=15, g=9.81)
    assert env.spec is not None
    again = EnvSpec.from_json(env.spec.to_json()).make()
    assert env.spec.max_episode_steps == 15
    assert again.get_wrapper_attr("g") == 9.81
    check_environments_match(env, again, 14)
    assert last_step(again) == 15
    unlimited = native.SingleEnv("Pendulum-v1", max_episode_steps=-1).spec
    assert unlimited is not None
    assert last_step(unlimited.make(), most=300) == 0


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_make_vec_makes_pools(mode: AutoresetMode):
    """make_vec gives a pool, by its entry point if nothing else is asked for, and its spec makes the same again.

    What native.make takes goes into make_vec's keyword arguments, a value for each environment included.
    """
    made = gymnasium.make_vec(
        "penstock/CartPole-v1", num_envs=3, autoreset_mode=mode, num_threads=2, gravity=[1.0, 2.0, 3.0]
    )
    assert isinstance(made, native.Pool)
    assert made.metadata["autoreset_mode"] == made.autoreset_mode == mode
    assert (made.num_threads, made.get_attr("gravity")) == (2, (1.0, 2.0, 3.0))
    named = gymnasium.make_vec("penstock/CartPole-v1", 2, "vector_entry_point", autoreset_mode=mode.value)
    assert named.metadata["autoreset_mode"] == mode
    direct = native.make("CartPole-v1", 3, 2, 44, mode, gravity=[1.0, 2.0, 3.0], record_episode_statistics=True)
    assert direct.spec is not None
    spec = EnvSpec.from_json(direct.spec.to_json())
    for again in (gymnasium.make_vec(direct.spec), gymnasium.make_vec(spec)):
        assert isinstance(again, native.Pool)
        assert again.environment == direct.environment
        assert (again.num_envs, again.num_threads, again.autoreset_mode) == (3, 2, mode)
        assert again.get_attr("gravity") == (1.0, 2.0, 3.0)


def test_make_vec_takes_a_time_limit():
    """The spec's limit holds unless another is given; -1 means none, also in the spec that the pool then has."""
    for given, expected in (({}, 200), ({"max_episode_steps": 9}, 9), ({"max_episode_steps": -1}, None)):
        made = gymnasium.make_vec("penstock/Pendulum-v1", num_envs=2, **given)
        assert isinstance(made, native.Pool)
        assert made.environment["max_episode_steps"] == expected
    unlimited = native.make("Pendulum-v1", 2, max_episode_steps=-1)
    again = gymnasium.make_vec(unlimited.spec)
    again.reset(seed=0)
    assert isinstance(again, native.Pool)
    assert again.environment["max_episode_steps"] is None


def test_gymnasium_vectorises_single_environments():
    """SyncVectorEnv over ours equals SyncVectorEnv over Gymnasium's, for make_vec's mode "sync"."""
    ours = gymnasium.make_vec("penstock/CartPole-v1", num_envs=3, vectorization_mode="sync")
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    assert isinstance(ours, SyncVectorEnv)
    assert data_equivalence(ours.reset(seed=5), theirs.reset(seed=5), exact=True)
    theirs.action_space.seed(1)
    for _ in range(60):
        actions = theirs.action_space.sample()
        assert data_equivalence(ours.step(actions), theirs.step(actions), exact=True)


def test_fresh_interpreter_finds_environments_by_module():
    """`penstock.native:penstock/...` needs no import: Gymnasium makes it, and gymnasium.make then knows the rest."""
    program = (
        "import gymnasium; e = gymnasium.make('penstock.native:penstock/CartPole-v1'); "
        "v = gymnasium.make_vec('penstock/CartPole-v1', num_envs=2); print(e.spec.id, type(v).__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=150)
    assert ran.stdout.split() == ["penstock/CartPole-v1", "Pool"]


def test_registering_again_is_no_news():
    """A library that is loaded again registers again: no warning, the same entry; unknown ids are refused."""
    before = gymnasium.spec("penstock/CartPole-v1")
    assert native.register("CartPole-v1") == "penstock/CartPole-v1"
    assert gymnasium.spec("penstock/CartPole-v1") == before
    assert json.loads(before.to_json())["kwargs"] == {"environment_id": "CartPole-v1"}
    with pytest.raises(ValueError, match="CartPole-v9"):
        native.register("CartPole-v9")


def test_steps_need_an_episode():
    """Before a reset and after an episode's end a step is refused."""
    env = native.SingleEnv("CartPole-v1", max_episode_steps=2)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    assert env.step(1)[3] is True
    with pytest.raises(ResetNeeded, match="after an episode's end"):
        env.step(0)


def test_a_closed_environment_can_be_reset():
    """As Gymnasium's can: closing, even twice, closes the window alone; the next episode equals Gymnasium's."""
    ours, theirs = native.SingleEnv("CartPole-v1"), gymnasium.make("CartPole-v1").unwrapped
    for env in (ours, theirs):
        env.reset(seed=4)
        env.step(1)
        env.close()
        env.close()
    assert data_equivalence(ours.reset(), theirs.reset(), exact=True)
    assert np.array_equal(ours.step(1)[0], theirs.step(1)[0])


WRITES: dict[str, Any] = {
    "force_mag": 1000,
    "gravity": 1,
    "tau": 0.05,
    "state": np.array([0.1, 0.2, 0.03, 0.1]),
    "nonsense": 5,
}


@pytest.mark.parametrize("name", list(WRITES))
@pytest.mark.parametrize("way", ["attribute", "set_wrapper_attr", "SyncVectorEnv"])
def test_written_attributes_take_effect(name: str, way: str):
    """The next step equals that of Gymnasium's environment after the same write; an unknown name is kept."""
    results, read = [], []
    for env_id in ("penstock/CartPole-v1", "CartPole-v1"):
        if way == "SyncVectorEnv":
            many = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, env_id)] * 2)
            many.reset(seed=3)
            many.set_attr(name, [WRITES[name]] * 2)
            read.append(many.get_attr(name))
            results.append(many.step(np.ones(2, np.int64)))
            continue
        env = gymnasium.make(env_id)
        env.reset(seed=3)
        if way == "attribute":
            setattr(env.unwrapped, name, WRITES[name])
        else:
            assert env.set_wrapper_attr(name, WRITES[name])
        read.append(env.get_wrapper_attr(name))
        results.append(env.step(1))
    assert np.array_equal(read[0], read[1])
    assert data_equivalence(list(results[0][:4]), list(results[1][:4]), exact=True)


def test_wrong_writes_are_refused_and_change_nothing():
    """A bad value, a state before the first reset and what a step only reports are named."""
    env = native.SingleEnv("CartPole-v1")
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.state = np.zeros(4)
    env.reset(seed=0)
    for name, value, message in (
        ("force_mag", "strong", "force_mag must be float"),
        ("masspole", -1.0, "must be > 0"),
        ("state", np.zeros(3), "state needs numbers of shape"),
    ):
        before = env.get_wrapper_attr(name)
        with pytest.raises(ValueError, match=message):
            setattr(env, name, value)
        assert np.array_equal(env.get_wrapper_attr(name), before)
    hopper = native.SingleEnv("Hopper-v5")
    with pytest.raises(AttributeError, match=r"'x_velocity' of .* cannot be set; these can: "):
        hopper.x_velocity = 1.0


def test_gymnasium_collects_frames():
    """`rgb_array_list` gives the frames since the last call, as of Gymnasium's environment."""
    frames = []
    for env_id in ("penstock/CartPole-v1", "CartPole-v1"):
        env = gymnasium.make(env_id, render_mode="rgb_array_list")
        env.reset(seed=0)
        env.step(1)
        frames.append(env.render())
        env.close()
    assert len(frames[0]) == 2
    assert np.array_equal(frames[0], frames[1])


@pytest.mark.parametrize(
    ("env_id", "action", "message"),
    [
        ("CartPole-v1", 2, "action 2 of environment 0 is out of range: expected 0 to 1"),
        ("CartPole-v1", [0, 1], r"expected an action of shape \(\), got int64 \(2,\)"),
        ("CartPole-v1", 0.5, "expected integers"),
        ("Pendulum-v1", 0.5, r"expected an array of shape \(1,\) as action, got 0.5"),
        ("Pendulum-v1", [np.nan], "not finite"),
    ],
)
def test_bad_actions_are_refused(env_id: str, action: Any, message: str):
    """The message says what is expected of one environment, and nothing has moved."""
    env = native.SingleEnv(env_id)
    env.reset(seed=0)
    before = env.get_wrapper_attr("state")
    with pytest.raises(TypeError if "an array" in message else ValueError, match=message):
        env.step(action)
    assert np.array_equal(env.get_wrapper_attr("state"), before)


def test_single_environment_refuses_options_and_agents():
    """Options, render modes, fields and attributes that there are not."""
    env = native.SingleEnv("CartPole-v1", gravity=3.0)
    assert env.get_wrapper_attr("gravity") == 3.0
    assert not env.has_wrapper_attr("state")  # before a reset there is none
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"level": 2})
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"reset_mask": np.ones(1, dtype=bool)})
    with pytest.raises(RuntimeError, match="make it with render_mode="):
        env.render()
    with pytest.raises(ValueError, match="render_mode is 'ansi', expected 'rgb_array' or 'human'"):
        native.SingleEnv("CartPole-v1", render_mode="ansi")
    with pytest.raises(ValueError, match="no configuration field 'gravitas'"):
        gymnasium.make("penstock/CartPole-v1", gravitas=1.0)
    env.reset(seed=0)
    assert env.has_wrapper_attr("state")
    with pytest.raises(AttributeError, match="no attribute 'mass'; there are: gravity, "):
        _ = env.mass


def test_environments_of_many_agents_are_pools_alone():
    """gymnasium.Env has one reward: SingleEnv says so, and Gymnasium makes vector environments of them only."""
    for env_id in TEAMS:
        with pytest.raises(ValueError, match="agents with a reward each"):
            native.SingleEnv(env_id)
        assert gymnasium.spec(f"penstock/{env_id}").entry_point is None
        pool = gymnasium.make_vec(f"penstock/{env_id}", num_envs=2)
        pool.reset(seed=0)
        assert pool.step(pool.action_space.sample())[1].ndim == 2


def test_copied_environment_resumes():
    """Pickle in the middle of an episode: the copy resumes bit for bit, through the resets that follow."""
    env = native.SingleEnv("CartPole-v1")
    env.reset(seed=4)
    env.step(1)
    copy = pickle.loads(pickle.dumps(env))
    for step in range(60):
        results = [one.step(step % 2) for one in (env, copy)]
        assert data_equivalence(*results, exact=True)
        if results[0][2] or results[0][3]:
            assert data_equivalence(env.reset(), copy.reset(), exact=True)


def test_a_single_environment_has_the_statistics_of_its_episode():
    """As RecordEpisodeStatistics gives them: numbers, without an axis of environments."""
    env = gymnasium.make("penstock/CartPole-v1", record_episode_statistics=True)
    env.reset(seed=0)
    steps, over = 0, False
    while not over:
        _, _, over, _, infos = env.step(0)
        steps += 1
    assert (float(infos["episode"]["r"]), int(infos["episode"]["l"])) == (float(steps), steps)
    assert np.ndim(infos["episode"]["r"]) == 0
