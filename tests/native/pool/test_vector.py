"""The contract of gymnasium.vector.VectorEnv, with Gymnasium's own SyncVectorEnv as the judge."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

from penstock import native
from penstock.native.pool import mujoco_library

MODES = list(AutoresetMode)
# The MuJoCo tasks are held against Gymnasium where they are tested: their infos are not all float64 there.
OTHERS = {env_id for env_id in native.environment_ids() if env_id.startswith(("toy/", "MiniGrid-", "dmc/"))}
"""Those that observe arrays where Gymnasium's of that name observe something else."""
SHARED = [
    env_id
    for env_id in native.environment_ids()
    if env_id in gymnasium.registry.keys() - {*mujoco_library.IDS} - OTHERS
]


class Counting(gymnasium.Env):
    """The same as counting.cpp, in Python."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(5)
    limit = 3

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        return np.array([0.0]), {"count": 0.0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        infos = {"count": float(self.count), "action": float(action)}
        return np.array([float(self.count)]), float(action), self.count >= self.limit, False, infos


def both(env_id: str, mode: AutoresetMode, num_envs: int, limit: int | None = None) -> tuple[native.Pool, VectorEnv]:
    pool = native.make(env_id, num_envs, max_episode_steps=limit, autoreset_mode=mode)
    make = [lambda: gymnasium.make(env_id, max_episode_steps=limit)] * num_envs
    return pool, SyncVectorEnv(make, autoreset_mode=mode)


def assert_equal_rollouts(pool: VectorEnv, sync: VectorEnv, steps: int, resets: dict[int, Any]) -> int:
    """Step both through the same actions, with masked resets in some steps; how many episodes ended."""
    assert pool.observation_space == sync.observation_space
    assert pool.action_space == sync.action_space
    assert pool.single_observation_space == sync.single_observation_space
    assert pool.single_action_space == sync.single_action_space
    assert data_equivalence(pool.reset(seed=42), sync.reset(seed=42), exact=True)
    pool.action_space.seed(0)
    ended = 0
    for step in range(steps):
        actions = pool.action_space.sample()
        ours, theirs = pool.step(actions), sync.step(actions)
        assert data_equivalence(ours, theirs, exact=True), f"step {step}: {ours} against {theirs}"
        over = ours[2] | ours[3]
        ended += int(over.sum())
        if step in resets:
            seed, mask = resets[step]
            mask = mask | over if pool.metadata["autoreset_mode"] == AutoresetMode.DISABLED else mask
        elif pool.metadata["autoreset_mode"] == AutoresetMode.DISABLED and over.any():
            seed, mask = None, over
        else:
            continue
        results = [env.reset(seed=seed, options={"reset_mask": mask.copy()}) for env in (pool, sync)]
        assert data_equivalence(*results, exact=True), f"reset after step {step}"
    assert data_equivalence(pool.reset(), sync.reset(), exact=True)
    return ended


def some_resets(num_envs: int, steps: int) -> dict[int, Any]:
    """Masked resets at odd moments: with a seed for all, for some, for none."""
    generator = np.random.default_rng(1)
    resets: dict[int, Any] = {}
    for step in range(13, steps, 29):
        mask = generator.integers(0, 2, num_envs).astype(bool)
        mask[step % num_envs] = True
        some = [int(value) if value % 2 else None for value in generator.integers(0, 99, num_envs)]
        resets[step] = ([None, step, some][step % 3], mask)
    return resets


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", SHARED)
def test_pools_equal_sync_vector_env(env_id: str, mode: AutoresetMode):
    """Spaces, observations, rewards, flags and infos over many episodes and masked resets, bit for bit."""
    pool, sync = both(env_id, mode, 5, limit=37)

    ended = assert_equal_rollouts(pool, sync, 400, some_resets(5, 400))

    assert ended > 20


@pytest.mark.parametrize("mode", MODES)
def test_infos_equal_sync_vector_env(counting: str, mode: AutoresetMode):
    """Reports of environments come with their masks as Gymnasium lays them out.

    That is: after resets, steps, and steps that stand for resets of some or of all; in `final_info` the last step's.
    """
    pool = native.make(counting, 4, autoreset_mode=mode, limit=[1, 2, 3, 5])
    sync = SyncVectorEnv([Counting] * 4, autoreset_mode=mode)
    sync.set_attr("limit", [1, 2, 3, 5])
    assert assert_equal_rollouts(pool, sync, 60, some_resets(4, 60)) > 60
    together = native.make(counting, 2, autoreset_mode=mode, limit=2)
    sync = SyncVectorEnv([Counting] * 2, autoreset_mode=mode)
    sync.set_attr("limit", 2)
    assert_equal_rollouts(together, sync, 12, {})


STEPS = {
    AutoresetMode.NEXT_STEP: [
        # observations, rewards, terminated
        ([1, 1, 1], [1, 2, 3], [False, False, False]),
        ([2, 2, 2], [1, 2, 3], [True, False, False]),
        ([0, 3, 3], [0, 2, 3], [False, True, True]),
        ([1, 0, 0], [1, 0, 0], [False, False, False]),
        ([2, 1, 1], [1, 2, 3], [True, False, False]),
    ],
    AutoresetMode.SAME_STEP: [
        ([1, 1, 1], [1, 2, 3], [False, False, False]),
        ([0, 2, 2], [1, 2, 3], [True, False, False]),
        ([1, 0, 0], [1, 2, 3], [False, True, True]),
        ([0, 1, 1], [1, 2, 3], [True, False, False]),
    ],
    AutoresetMode.DISABLED: [
        ([1, 1, 1], [1, 2, 3], [False, False, False]),
        ([2, 2, 2], [1, 2, 3], [True, False, False]),
        # from here on the test resets those whose episode ended, before the next step
        ([1, 3, 3], [1, 2, 3], [False, True, True]),
        ([2, 1, 1], [1, 2, 3], [True, False, False]),
    ],
}


@pytest.mark.parametrize("mode", MODES)
def test_reset_modes_step_by_step(counting: str, mode: AutoresetMode):
    """Three environments that end after 2, 3 and 3 steps; what each mode then shows, written out."""
    envs = native.make(counting, 3, autoreset_mode=mode)
    envs.set_attr("limit", [2, 3, 3])
    assert envs.metadata["autoreset_mode"] is mode
    observation, infos = envs.reset()
    assert observation.tolist() == [[0], [0], [0]]
    assert data_equivalence(infos, {"count": np.zeros(3), "_count": np.ones(3, bool)}, exact=True)
    last = np.zeros(3)
    for seen, rewards, terminated in STEPS[mode]:
        before = last
        observation, reward, over, truncated, infos = envs.step(np.array([1, 2, 3]))
        assert observation.ravel().tolist() == seen
        assert reward.tolist() == rewards
        assert over.tolist() == terminated
        assert not truncated.any()
        last = observation.ravel()
        if mode == AutoresetMode.SAME_STEP and over.any():
            assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == terminated
            finals = [None if final is None else final.tolist() for final in infos["final_obs"]]
            expected = [[value + 1] if ended else None for value, ended in zip(before, terminated, strict=True)]
            assert finals == expected
            assert infos["final_info"]["_action"].tolist() == terminated
            assert infos["final_info"]["action"].tolist() == [n if ended else 0 for n, ended in zip((1, 2, 3), over)]  # noqa: B905
        else:
            assert "final_obs" not in infos
        if mode == AutoresetMode.DISABLED and over.any():
            with pytest.raises(RuntimeError, match="has ended and nothing resets it"):
                envs.step(np.array([1, 2, 3]))
            observation, _ = envs.reset(options={"reset_mask": over})
            last = np.where(over, 0, last)
            assert observation.ravel().tolist() == last.tolist()


def test_reset_mask_is_checked_and_taken_out():
    """Types and shapes are refused as SyncVectorEnv refuses them, before anything moves; `options` loses the mask."""
    pool, sync = both("CartPole-v1", AutoresetMode.DISABLED, 3)
    for env in (pool, sync):
        env.reset(seed=0)
    before = pool.save()
    cases: list[tuple[Any, type[Exception]]] = [
        ([True, True, False], TypeError),
        (np.array([1, 1, 0]), TypeError),
        (np.array([1.0, 0.0, 0.0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([[True, True, True]]), ValueError),
        (np.ones(4, bool), ValueError),
        (np.zeros(3, bool), ValueError),
    ]
    for mask, error in cases:
        for env in (pool, sync):
            with pytest.raises(error, match="reset_mask"):
                env.reset(options={"reset_mask": mask})
    assert data_equivalence(pool.save(), before, exact=True)
    for env in (pool, sync):
        options = {"reset_mask": np.array([True, False, True])}
        env.reset(seed=1, options=options)
        assert options == {}


def test_masked_reset_leaves_the_others_alone():
    """Environments outside the mask continue their episode, generator and observation.

    After a masked first reset there is nothing to show yet: the rest must be reset too.
    """
    pool = native.make("CartPole-v1", 3, autoreset_mode="Disabled")
    with pytest.raises(RuntimeError, match="not every environment is ready"):
        pool.reset(seed=[0, 1, 0], options={"reset_mask": np.array([True, True, False])})
    first, _ = pool.reset(seed=[9, 9, 2], options={"reset_mask": np.array([False, False, True])})
    assert np.array_equal(first, native.make("CartPole-v1", 3).reset(seed=[0, 1, 2])[0])
    assert pool.np_random_seed == (0, 1, 2)
    stepped = pool.step(np.array([0, 1, 1]))[0]
    mask = np.array([True, False, False])
    again, _ = pool.reset(seed=[0, 5, 5], options={"reset_mask": mask})
    assert np.array_equal(again[0], first[0])
    assert np.array_equal(again[1:], stepped[1:])
    assert pool.get_attr("elapsed_steps") == (0, 1, 1)


def test_every_form_of_seed():
    """An int counts up, a sequence is taken as it is, None keeps the generator; each reset honours its seed."""
    pool, sync = both("CartPole-v1", AutoresetMode.NEXT_STEP, 3)
    forms: list[Any] = [7, None, [3, None, 5], 7, (1, 2, 3), np.array([4, 5, 6]), [0, 0, 0], None, np.int64(7)]
    for form in forms:
        ours = pool.reset(seed=form)
        theirs = sync.reset(
            seed=[None if one is None else int(one) for one in form]
            if np.ndim(form)
            else (None if form is None else int(form))
        )
        assert data_equivalence(ours, theirs, exact=True)
        assert pool.np_random_seed == sync.np_random_seed
    for ours, theirs in zip(pool.np_random, sync.np_random, strict=True):
        assert ours.bit_generator.state["state"] == theirs.bit_generator.state["state"]


def test_seeds_that_were_looked_at_are_used():
    """Without a seed each environment draws its own; what np_random_seed then says is what the first reset uses."""
    pool = native.make("CartPole-v1", 5)
    seeds = pool.np_random_seed
    assert len(set(seeds)) == 5
    assert pool.np_random_seed == seeds
    assert pool.np_random[2].random() == np.random.default_rng(seeds[2]).random()
    observation, _ = pool.reset()
    assert np.array_equal(observation, native.make("CartPole-v1", 5).reset(seed=seeds)[0])
    assert pool.np_random_seed == seeds


@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics_equal_the_wrappers(mode: AutoresetMode):
    """record_episode_statistics gives what RecordEpisodeStatistics adds, the measured time apart."""
    ours = native.make("CartPole-v1", 4, 1, 30, mode, record_episode_statistics=True)
    theirs = wrappers.RecordEpisodeStatistics(native.make("CartPole-v1", 4, 1, 30, mode))
    ours.action_space.seed(0)
    ours.reset(seed=1)
    theirs.reset(seed=1)
    ended = 0
    for _ in range(200):
        actions = ours.action_space.sample()
        left, right = ours.step(actions), theirs.step(actions)
        assert left[4].keys() == right[4].keys()
        over = left[2] | left[3]
        if over.any():
            ended += over.sum()
            times = [infos["episode"].pop("t") for infos in (left[4], right[4])]
            assert all(time.dtype == np.float64 and (time[over] >= 0).all() for time in times)
            assert not times[0][~over].any()
        assert data_equivalence(left, right, exact=True)
        if mode == AutoresetMode.DISABLED and over.any():
            ours.reset()  # of all: the wrapper, which does not see the mask that was taken out, forgets them all
            theirs.reset()
    assert ended > 10


BOTH = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
WRAPPERS: list[tuple[Any, str, list[AutoresetMode]]] = [
    (wrappers.RecordEpisodeStatistics, "CartPole-v1", BOTH),
    (wrappers.NormalizeReward, "Pendulum-v1", BOTH),
    (wrappers.NormalizeObservation, "CartPole-v1", BOTH[:1]),  # Gymnasium's own refuse SAME_STEP
    (wrappers.FlattenObservation, "CartPole-v1", BOTH[:1]),
    (lambda env: wrappers.ClipReward(env, -2.0, -1.0), "Pendulum-v1", BOTH),
    (lambda env: wrappers.TransformReward(env, lambda reward: reward * 2), "CartPole-v1", BOTH),
    (wrappers.ClipAction, "Pendulum-v1", BOTH),
    (wrappers.DictInfoToList, "CartPole-v1", BOTH),
]


@pytest.mark.parametrize(
    ("wrap", "env_id", "mode"), [(wrap, env_id, mode) for wrap, env_id, modes in WRAPPERS for mode in modes]
)
def test_gymnasiums_wrappers_fit(wrap: Any, env_id: str, mode: AutoresetMode):
    """A wrapper over a pool gives what it gives over SyncVectorEnv."""
    pool, sync = (wrap(env) for env in both(env_id, mode, 3, limit=20))
    assert data_equivalence(pool.reset(seed=3), sync.reset(seed=3), exact=True)
    pool.action_space.seed(3)
    for _ in range(80):
        actions = pool.action_space.sample()
        ours, theirs = pool.step(actions), sync.step(actions)
        for infos in (ours[4], theirs[4]):
            if isinstance(infos, dict) and "episode" in infos:
                del infos["episode"]["t"]
        assert data_equivalence(ours, theirs, exact=True)
    assert pool.unwrapped.num_envs == 3
    pool.close()
    sync.close()


@pytest.mark.parametrize("mode", MODES)
def test_arrays_are_the_callers(mode: AutoresetMode):
    """Arrays of a step or reset are never written again while they are kept; infos' arrays do not share memory."""
    pool = native.make("CartPole-v1", 3, 1, 5, mode, record_episode_statistics=True)
    kept = [pool.reset(seed=0)]
    copies = [_copied(kept[0])]
    for _ in range(20):
        result = pool.step(np.ones(3, np.int64))
        over = result[2] | result[3]
        if mode == AutoresetMode.DISABLED and over.any():
            kept.append(pool.reset(options={"reset_mask": over}))
            copies.append(_copied(kept[-1]))
        kept.append(result)
        copies.append(_copied(result))
    assert data_equivalence(kept, copies, exact=True)
    arrays = [array for result in kept for array in _arrays(result)]
    for index, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[index + 1 :] if other.dtype == array.dtype)


def _copied(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_copied(value) for value in data)
    return data.copy()


def _arrays(data: Any) -> list[np.ndarray]:
    if isinstance(data, np.ndarray):
        return [data]
    return [array for value in (data.values() if isinstance(data, dict) else data) for array in _arrays(value)]
