"""Attributes of a pool's environments: read, changed while they run, and copied."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from penstock import native
from penstock.native.pool import mujoco_library

MODES = list(AutoresetMode)
# The MuJoCo tasks have another state than Gymnasium's, and are held against those where they are tested.
OTHERS = {env_id for env_id in native.environment_ids() if env_id.startswith(("toy/", "MiniGrid-", "dmc/"))}
"""Those that observe arrays where Gymnasium's of that name observe something else."""
SHARED = [
    env_id
    for env_id in native.environment_ids()
    if env_id in gymnasium.registry.keys() - {*mujoco_library.IDS} - OTHERS
]
COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, lambda pool: pickle.loads(pickle.dumps(pool))]


def started(env_id: str = "CartPole-v1", num_envs: int = 3, **options: Any) -> native.Pool:
    pool = native.make(env_id, num_envs, **options)
    pool.reset(seed=1)
    return pool


@pytest.mark.parametrize("env_id", SHARED)
def test_attributes_are_those_of_gymnasiums_environments(env_id: str):
    """State, seeds, generators, spaces and configuration, before and after steps, equal SyncVectorEnv's."""
    pool, sync = started(env_id), SyncVectorEnv([lambda: gymnasium.make(env_id)] * 3)
    sync.reset(seed=1)
    for _ in range(3):
        for ours, theirs in zip(pool.get_attr("state"), sync.get_attr("state"), strict=True):
            assert np.array_equal(ours, np.asarray(theirs))
        assert pool.call("np_random_seed") == sync.call("np_random_seed") == (1, 2, 3)
        for name in ("observation_space", "action_space"):
            assert pool.get_attr(name) == sync.get_attr(name)
        for name in pool.config:
            if hasattr(sync.envs[0].unwrapped, name):
                assert pool.get_attr(name) == sync.get_attr(name)
        actions = sync.action_space.sample()
        pool.step(actions)
        sync.step(actions)
    assert pool.get_attr("elapsed_steps") == (3, 3, 3)


@pytest.mark.slow
def test_names_of_every_kind(counting: str):
    """Fields of configuration, state and report, what the framework counts, and what all environments share."""
    pool = native.make(counting, 2, limit=[4, 9])
    assert pool.get_attr("limit") == (4, 9)
    pool.reset(seed=3)
    for action in (1, 2):
        pool.step(np.array([action, 4]))
    assert pool.get_attr("count") == (2, 2)
    assert pool.get_attr("action") == (2.0, 4.0)
    assert pool.get_attr("episode_return") == (3.0, 8.0)
    assert pool.get_attr("episode_id") == (0, 0)
    assert pool.get_attr("render_mode") == (None, None)
    assert [spec.kwargs["limit"] for spec in pool.get_attr("spec")] == [4, 9]
    assert pool.get_attr("metadata")[0] is pool.metadata


def test_configuration_for_each_environment():
    """Each environment plays under its own gravity, from the start and when it is changed in mid-episode."""
    gravities = [1.0, 9.8, 40.0]
    pool = started(gravity=gravities, autoreset_mode="SameStep")
    sync = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    sync.set_attr("gravity", gravities)
    sync.reset(seed=1)
    sync.action_space.seed(0)
    for step in range(150):
        if step == 50:
            for env in (pool, sync):
                env.set_attr("gravity", [30.0, 20.0, 10.0])
        if step == 100:
            for env in (pool, sync):
                env.set_attr("gravity", 5.0)
        actions = sync.action_space.sample()
        assert data_equivalence(pool.step(actions), sync.step(actions), exact=True)
    assert pool.get_attr("gravity") == sync.get_attr("gravity") == (5.0, 5.0, 5.0)
    assert pool.config["gravity"].tolist() == [5.0] * 3


def test_state_can_be_set():
    """The whole state or one field of it, for each environment or for all, and then the steps follow from it."""
    pool, sync = started(), SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    sync.reset(seed=1)
    states = [np.array([0.1 * row, 0.2, -0.01, 0.3]) for row in range(3)]
    pool.set_attr("state", states)
    sync.set_attr("state", states)
    actions = np.array([0, 1, 1])
    assert data_equivalence(pool.step(actions), sync.step(actions), exact=True)
    pool.set_attr("x", 1.5)
    pool.set_attr("angle", [0.0, 0.1, 0.2])
    assert pool.get_attr("x") == (1.5,) * 3
    assert [state[[0, 2]].tolist() for state in pool.get_attr("state")] == [[1.5, 0.0], [1.5, 0.1], [1.5, 0.2]]
    pool.set_attr("state", np.zeros(4))
    assert pool.observation.tolist() == [[0.0] * 4] * 3
    pool.set_attr("elapsed_steps", 499)
    assert pool.step(actions)[3].all()


def test_a_list_of_states_is_one_for_each_environment():
    """Four numbers for four environments are refused: a list has a state for each, and a state has four numbers."""
    pool = started(num_envs=4)
    before = pool.save()
    with pytest.raises(ValueError, match=r"needs numbers of shape \(4, 4\), or an array of \(4,\).* got a list of"):
        pool.set_attr("state", [0.1, 0.2, 0.3, 0.4])
    assert data_equivalence(pool.save(), before, exact=True)


def test_generators_can_be_set():
    """A generator of NumPy's for each environment or one for all; the next reset draws what it would have drawn."""
    pool = started()
    generators = [np.random.default_rng(seed) for seed in (7, 8, 9)]
    generators[0].random(5)
    pool.set_attr("np_random", generators)
    assert pool.np_random_seed == (-1, -1, -1)
    expected = np.stack([generator.uniform(-0.05, 0.05, 4) for generator in generators]).astype(np.float32)
    assert np.array_equal(pool.reset()[0], expected)
    pool.np_random = np.random.default_rng(3)
    assert np.array_equal(pool.reset()[0], native.make("CartPole-v1", 3).reset(seed=[3, 3, 3])[0])


@pytest.mark.parametrize(
    ("name", "values", "error", "message"),
    [
        ("gravity", [1.0, 2.0], ValueError, "gravity needs one value .* got 2 for 3 environments"),
        ("gravity", "strong", ValueError, "gravity must be float, or 3 of them, got 'strong'"),
        ("gravity", float("inf"), ValueError, "gravity must be finite"),
        ("masspole", [0.1, -0.1, 0.1], ValueError, "configuration of environment 1: masscart, masspole"),
        ("state", np.zeros(3), ValueError, r"state needs numbers of shape \(3, 4\), or an array of \(4,\) for"),
        ("x", "left", ValueError, "x needs numbers"),
        ("elapsed_steps", -1, ValueError, "elapsed_steps of environment 0 is negative"),
        ("np_random", 5, TypeError, "np_random must be a numpy Generator over PCG64"),
        ("np_random", np.random.Generator(np.random.MT19937(1)), TypeError, "over PCG64"),
        ("mass", 1.0, AttributeError, "'mass' of Pool.* cannot be set; these can: gravity, .*x_dot.*np_random"),
        ("spec", None, AttributeError, "cannot be set"),
    ],
)
def test_invalid_values_change_nothing(name: str, values: Any, error: type[Exception], message: str):
    """The message says what would be right, and every environment is as it was."""
    pool = started()
    before = pool.save()
    with pytest.raises(error, match=message):
        pool.set_attr(name, values)
    assert data_equivalence(pool.save(), before, exact=True)
    assert pool.config["gravity"].tolist() == [9.8] * 3


def test_unknown_names_are_reported():
    """Names and methods that there are not list those that there are, before a reset too; state needs one."""
    pool = native.make("CartPole-v1", 2)
    with pytest.raises(AttributeError, match=r"no attribute 'mass'; there are: gravity, .*x_dot.*np_random"):
        pool.get_attr("mass")
    with pytest.raises(AttributeError, match=r"no method 'jump': they are C\+\+"):
        pool.call("jump")
    with pytest.raises(TypeError, match="takes no arguments"):
        pool.call("gravity", 3.0)
    with pytest.raises(ValueError, match="no configuration field 'mass'; its fields: gravity="):
        pool.configure(mass=1.0)
    with pytest.raises(RuntimeError, match="not every environment is ready"):
        pool.get_attr("state")


def test_state_belongs_to_its_configuration():
    """After the configuration was changed, an earlier state is refused and a later one taken."""
    pool = started()
    state = pool.save()
    pool.configure(gravity=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"config\.gravity of environment 0 is 9\.8"):
        pool.restore(state)
    other = native.make("CartPole-v1", 3, gravity=[1.0, 2.0, 3.0])
    other.restore(pool.save())
    assert np.array_equal(other.observation, pool.observation)


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", SHARED)
def test_copies_resume_bit_for_bit(env_id: str, mode: AutoresetMode, copied: Callable[[Any], Any]):
    """A copy in mid-episode samples the same actions and gives the same steps and resets; neither moves the other."""
    pool = started(env_id, 4, max_episode_steps=9, autoreset_mode=mode, num_threads=2, record_episode_statistics=True)
    pool.action_space.seed(5)
    for _ in range(5):
        pool.step(pool.action_space.sample())
    other = copied(pool)
    assert (other.num_threads, other.spec, other.np_random_seed) == (2, pool.spec, pool.np_random_seed)
    ended = 0
    for _ in range(40):
        results = [env.step(env.action_space.sample()) for env in (pool, other)]
        over = results[0][2] | results[0][3]
        for result in results:
            result[4].get("episode", {}).pop("t", None)
        assert data_equivalence(*results, exact=True)
        ended += over.sum()
        if mode == AutoresetMode.DISABLED and over.any():
            resets = [env.reset(options={"reset_mask": over}) for env in (pool, other)]
            assert data_equivalence(*resets, exact=True)
    assert ended > 8
    pool.close()
    assert np.array_equal(other.observation, results[1][0]) or mode == AutoresetMode.DISABLED


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle"])
def test_copies_before_the_first_reset_and_after_changes(copied: Callable[[Any], Any]):
    """Drawn seeds, a changed configuration and a user's own attributes travel too; a closed pool says that it is."""
    pool = native.make("CartPole-v1", 2)
    seeds = pool.np_random_seed
    pool.set_attr("gravity", [3.0, 4.0])
    pool.note = "mine"
    other = copied(pool)
    assert (other.np_random_seed, other.get_attr("gravity"), other.note) == (seeds, (3.0, 4.0), "mine")
    assert np.array_equal(other.reset()[0], pool.reset()[0])
    actions = np.array([0, 1])
    assert data_equivalence(pool.step(actions), other.step(actions), exact=True)
    pool.close()
    with pytest.raises(RuntimeError, match="this pool is closed"):
        copied(pool)


def test_fields_that_may_be_infinite_can_be_set():
    """As `make` takes them: a limit whose default is infinite, by itself and as a range."""
    pytest.importorskip("mujoco", reason="comes with penstock-rl[mujoco]")
    pool = native.make("Hopper-v5", 2)
    pool.set_attr("healthy_z_max", pool.get_attr("healthy_z_max"))
    pool.configure(healthy_z_range=(0.5, np.inf))
    assert (pool.get_attr("healthy_z_min"), pool.get_attr("healthy_z_max")) == ((0.5, 0.5), (np.inf, np.inf))
    with pytest.raises(ValueError, match="healthy_z_max must be finite, got nan"):
        pool.configure(healthy_z_max=np.nan)


def test_a_spec_has_what_makes_batches():
    """`gymnasium.make_vec` makes the same pool again."""
    pool = native.make("CartPole-v1", 4, batch_size=2, deterministic=True)
    assert pool.spec is not None
    again = gymnasium.make_vec(pool.spec).unwrapped
    assert (again.batch_size, again._deterministic) == (2, True)
    assert not {"batch_size", "deterministic", "thread_affinity"} & native.make("CartPole-v1", 4).spec.kwargs.keys()


def test_whole_numbers_of_a_state_take_no_fractions():
    """A place between two fields of the lake is none."""
    pool = native.make("toy/FrozenLake-v1", 2)
    pool.reset(seed=0)
    pool.set_attr("square", [3, 2.0])
    assert pool.get_attr("square") == (3, 2)
    with pytest.raises(ValueError, match="square needs int64: whole numbers"):
        pool.set_attr("square", 2.7)
