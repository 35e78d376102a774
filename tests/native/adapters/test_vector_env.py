"""Wrapped pools: another library steps, and both APIs keep the contract of the pool that this package steps itself."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from penstock import native

from ...support.slow import slow_after

NUM_ENVS = 2
# Atari's limit cuts episodes so that several end in few steps.
ATARI = ("ALE/Breakout-v5", {"max_episode_steps": 9, "stack_num": 2, "img_height": 21, "img_width": 16})
CARTPOLE = ("gymnasium/CartPole-v1", {"max_episode_steps": 12})
PENDULUM = ("gymnasium/Pendulum-v1", {"max_episode_steps": 7})
FROZEN_LAKE = ("gymnasium/FrozenLake-v1", {"map_name": "4x4"})
KINDS = [ATARI, CARTPOLE, PENDULUM, FROZEN_LAKE]
NAMES = ["atari", "cartpole", "pendulum", "frozen-lake"]


def buffers(pool: native.EnvironmentPool, steps: int) -> dict[str, np.ndarray]:
    """Buffers filled with what no environment gives, so that a row that is not written is seen."""
    shape, observation = (steps, pool.num_envs), pool.environment["observation"]
    return {
        "observation": np.full((*shape, *observation["shape"]), 77, observation["dtype"]),
        "reward": np.full(shape, np.nan, np.float32),
        "terminated": np.full(shape, 9, np.uint8),
        "truncated": np.full(shape, 9, np.uint8),
        "episode_id": np.full(shape, -9, np.int32),
    }


def random_actions(pool: native.EnvironmentPool, steps: int, seed: int) -> np.ndarray:
    generator, action = np.random.default_rng(seed), pool.environment["action"]
    if action["kind"] == "discrete":
        return generator.integers(0, action["n"], (steps, pool.num_envs))
    return generator.uniform(-2, 2, (steps, pool.num_envs, *action["shape"])).astype(np.float32)


def play_round(pool: native.EnvironmentPool, steps: int, seed: int) -> dict[str, np.ndarray]:
    """Everything that one round gives, under one name each."""
    arrays = buffers(pool, steps)
    pool.begin_round(**arrays)
    for t, action in enumerate(random_actions(pool, steps, seed)):
        pool.step_round(t, action)
    end = pool.end_round()
    extra = {"bootstrap_rows": end.bootstrap_rows, "bootstrap_observation": end.bootstrap_observation}
    return arrays | extra | {f"episodes.{name}": column for name, column in end.episodes.items()}


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype, name
        assert array.shape == right[name].shape, name
        assert array.tobytes() == right[name].tobytes(), name


def assert_same_infos(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, dict):
            assert_same_infos(value, right[name])
        elif value.dtype == object:
            assert all(np.array_equal(a, b) for a, b in zip(value, right[name], strict=True)), name
        else:
            assert np.array_equal(value, right[name]), name


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_gymnasium_environments_equal_sync_vector_env(env_id: str, mode: AutoresetMode):
    """The Gymnasium API gives what SyncVectorEnv gives: every array, every info, masked resets too."""
    arguments = {"max_episode_steps": 6}
    pool = native.make(f"gymnasium/{env_id}", NUM_ENVS, autoreset_mode=mode, **arguments)
    other = SyncVectorEnv([lambda: gymnasium.make(env_id, **arguments)] * NUM_ENVS, autoreset_mode=mode)
    assert (pool.single_observation_space, pool.action_space) == (other.single_observation_space, other.action_space)
    assert pool.metadata["autoreset_mode"] == mode
    assert np.array_equal(pool.reset(seed=4)[0], other.reset(seed=4)[0])
    for action in random_actions(pool, 25, 0):
        got, expected = pool.step(action), other.step(action)
        for left, right in zip(got[:4], expected[:4], strict=True):
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes()
        assert_same_infos(got[4], expected[4])
        over = got[2] | got[3]
        if mode == AutoresetMode.DISABLED and over.any():
            options = {"reset_mask": over}
            assert np.array_equal(pool.reset(options=options)[0], other.reset(options=dict(options))[0])
            assert options.keys() == {"reset_mask"}


@pytest.mark.parametrize("mode", slow_after(1, [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]))
def test_atari_equals_ale_py(mode: AutoresetMode):
    """Pixels, rewards, flags and infos are those of ale-py's vector environment, made as Gymnasium makes the id."""
    settings = {"stack_num": 2, "img_height": 42, "noop_max": 5, "episodic_life": True, "reward_clipping": False}
    pool = native.make("ALE/Breakout-v5", NUM_ENVS, 2, 40, mode, **settings)
    other = gymnasium.make_vec(
        "ALE/Breakout-v5",
        NUM_ENVS,
        "vector_entry_point",
        autoreset_mode=mode,
        max_num_frames_per_episode=160,
        **settings,
    )
    assert (pool.single_observation_space, pool.action_space) == (other.single_observation_space, other.action_space)
    first, expected_first = pool.reset(seed=11), other.reset(seed=11)
    assert first[0].tobytes() == expected_first[0].tobytes()
    ends = 0
    for action in random_actions(pool, 90, 1):
        got, expected = pool.step(action), other.step(action)
        for left, right in zip(got[:4], expected[:4], strict=True):
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes()
        over = got[2] | got[3]
        ends += int(over.sum())
        if mode == AutoresetMode.SAME_STEP and over.any():
            # The rows of running episodes are memory that ale-py never wrote: the mask says which ones count.
            assert np.array_equal(got[4].pop("_final_obs"), over)
            left, right = (infos.pop("final_obs") for infos in (got[4], expected[4]))
            assert left[over].tobytes() == right[over].tobytes()
        assert_same_infos(got[4], expected[4])
    assert ends >= 2 * NUM_ENVS
    other.close()


def test_atari_masked_reset_takes_the_seeds_of_the_rows():
    """`seed=s` gives environment i the seed s + i whatever the mask, and the others stay as they are."""
    pool = native.make("ALE/Breakout-v5", NUM_ENVS, **ATARI[1], autoreset_mode="SameStep")
    pool.reset(seed=0)
    for action in random_actions(pool, 5, 0):
        before, *_ = pool.step(action)
    mask = np.array([False, True])
    after, _ = pool.reset(seed=30, options={"reset_mask": mask})
    fresh = native.make("ALE/Breakout-v5", NUM_ENVS, **ATARI[1]).reset(seed=30)[0]
    assert np.array_equal(after, np.where(mask[:, None, None, None], fresh, before))
    assert np.array_equal(pool.observation, after)


def test_atari_takes_seeds_of_64_bits():
    """ale-py takes 31 bits, to which larger ones are folded."""
    pool = native.make("ALE/Breakout-v5", 2, **ATARI[1])
    pool.reset_ids(np.array([2**64 - 1, 2**40 + 3], np.uint64))
    assert pool.observation.any()


@pytest.mark.parametrize(("env_id", "settings"), KINDS, ids=NAMES)
@pytest.mark.parametrize("made_for", slow_after(1, [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]))
def test_rounds_equal_the_gymnasium_api(env_id: str, settings: dict[str, Any], made_for: AutoresetMode):
    """Two rounds hold row for row what step() gives in same-step mode, whatever mode the pool was made for."""
    steps = 20
    rollout = native.make(env_id, NUM_ENVS, autoreset_mode=made_for, **settings)
    stepped = native.make(env_id, NUM_ENVS, autoreset_mode="SameStep", **settings)
    rollout.reset_ids(np.arange(50, 50 + NUM_ENVS, dtype=np.uint64))
    before, _ = stepped.reset(seed=50)
    ids, lengths, returns = np.zeros(NUM_ENVS, int), np.zeros(NUM_ENVS, int), np.zeros(NUM_ENVS)
    total = 0
    for number in range(2):
        got = play_round(rollout, steps, number)
        bootstrap: dict[int, np.ndarray] = {}
        episodes: list[tuple[Any, ...]] = []
        for t, action in enumerate(random_actions(stepped, steps, number)):
            assert np.array_equal(got["observation"][t], before)
            before, reward, terminated, truncated, info = stepped.step(action)
            assert np.array_equal(got["reward"][t], reward.astype(np.float32))
            assert np.array_equal(got["terminated"][t], terminated)
            assert np.array_equal(got["truncated"][t], truncated)
            assert np.array_equal(got["episode_id"][t], ids)
            lengths += 1
            returns += reward
            for env in range(NUM_ENVS):
                row = t * NUM_ENVS + env
                if terminated[env] or truncated[env]:
                    bootstrap[row] = info["final_obs"][env]
                    episodes.append((row, env, ids[env], lengths[env], returns[env], terminated[env], truncated[env]))
                    ids[env] += 1
                    lengths[env], returns[env] = 0, 0.0
                elif t == steps - 1:
                    bootstrap[row] = before[env]
        assert got["bootstrap_rows"].tolist() == sorted(bootstrap)
        assert np.array_equal(got["bootstrap_observation"], np.stack([bootstrap[row] for row in sorted(bootstrap)]))
        assert got["bootstrap_observation"].dtype == got["observation"].dtype
        columns = ["row", "env", "episode_id", "length", "return", "terminated", "truncated"]
        assert list(zip(*(got[f"episodes.{name}"].tolist() for name in columns), strict=True)) == episodes
        total += len(episodes)
        assert np.array_equal(rollout.observation, before)
    assert total >= NUM_ENVS
    native_types = native.make("CartPole-v1", NUM_ENVS)
    native_types.reset(seed=0)
    for name, column in play_round(native_types, 5, 0).items():
        if "observation" not in name:
            assert got[name].dtype == column.dtype, name


def test_async_and_sync_give_the_same_rounds():
    """Environments in processes of their own fill the same buffers as one after the other."""
    rounds = []
    for mode in ("sync", "async"):
        pool = native.make("gymnasium/CartPole-v1", 2, 1, 9, "SameStep", vectorization_mode=mode)
        pool.reset_ids(np.array([3, 2**64 - 1], np.uint64))
        rounds.append(play_round(pool, 15, 0))
        pool.close()
    assert_same(*rounds)


def test_wrapped_and_the_native_cartpole_fill_the_same_round():
    """One contract: the same id, seeds and actions give the same bytes, whichever library steps."""
    rounds = []
    for env_id in ("CartPole-v1", "gymnasium/CartPole-v1"):
        pool = native.make(env_id, NUM_ENVS, max_episode_steps=25)
        pool.reset_ids(np.arange(NUM_ENVS, dtype=np.uint64))
        rounds.append(play_round(pool, 60, 0))
    assert_same(*rounds)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_episode_statistics_are_counted_as_the_native_pool_counts(mode: str):
    """`episode` in the infos: the same episodes, returns and lengths as from the pool that this package steps."""
    pools = [
        native.make(env_id, NUM_ENVS, 1, 8, mode, record_episode_statistics=True)
        for env_id in ("CartPole-v1", "gymnasium/CartPole-v1")
    ]
    for pool in pools:
        pool.reset(seed=2)
    seen = 0
    for action in random_actions(pools[0], 30, 0):
        left, right = (pool.step(action)[4] for pool in pools)
        assert ("episode" in left) == ("episode" in right)
        if "episode" in left:
            seen += 1
            assert np.array_equal(left["_episode"], right["_episode"])
            assert left["episode"].keys() == right["episode"].keys()
            for name in ("r", "l"):
                assert np.array_equal(left["episode"][name], right["episode"][name])
            assert np.array_equal(left["episode"]["t"] > 0, left["_episode"])
    assert seen >= 2


class Pair(gymnasium.Env):
    """Observes two things and takes actions that count from 5; fails on request."""

    observation_space = Dict({"x": Box(-1, 1, (2,), np.float64), "n": Discrete(4)})
    action_space = Discrete(3, start=5)
    fails = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"x": self.np_random.uniform(-1, 1, 2), "n": 0}, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Pair.fails:
            raise OSError("the cable is out")
        return {"x": np.full(2, action / 10), "n": int(action) - 5}, float(action), False, False, {}


class NextStepOnly(VectorEnv):
    """A vector environment of its own, which knows one autoreset mode."""

    def __init__(self, num_envs: int, max_episode_steps: int | None = None) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = Box(0, 1, (1,))
        self.single_action_space = Discrete(2)
        self.observation_space, self.action_space = Box(0, 1, (num_envs, 1)), Discrete(2)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((self.num_envs, 1), np.float32), {}


@pytest.fixture
def registered():
    gymnasium.register("test/Pair-v0", Pair)
    gymnasium.register("test/NextStepOnly-v0", vector_entry_point=NextStepOnly)
    yield
    Pair.fails = False
    for env_id in ("test/Pair-v0", "test/NextStepOnly-v0"):
        del gymnasium.registry[env_id]


@pytest.mark.usefixtures("registered")
def test_other_observations_pass_through_step_and_are_refused_in_rounds():
    """Dict observations: the Gymnasium API hands them on; a round names the space and the argument that would help."""
    pool = native.make("test/Pair-v0", 2)
    first, _ = pool.reset(seed=0)
    assert first["x"].shape == (2, 2)
    assert pool.step(np.array([5, 7]))[1].tolist() == [5.0, 7.0]
    for ask in (lambda: pool.environment, lambda: pool.begin_round(*[np.zeros((1, 2), np.float32)] * 5)):
        with pytest.raises(ValueError, match=r"test/Pair-v0 has the observation space Dict.*one_array=True"):
            ask()


@pytest.mark.usefixtures("registered")
def test_wrappers_make_an_environment_fit_and_round_actions_count_from_zero():
    """With Gymnasium's wrapper the observation is one array; a round's action 0 is the space's first."""
    pool = native.make("test/Pair-v0", 2, wrappers=[gymnasium.wrappers.FlattenObservation])
    assert pool.environment["observation"] == {"dtype": "float64", "shape": (6,)}
    assert pool.environment["action"] == {"kind": "discrete", "dtype": "int64", "shape": (), "n": 3}
    pool.reset_ids(np.zeros(2, np.uint64))
    arrays = buffers(pool, 1)
    pool.begin_round(**arrays)
    with pytest.raises(ValueError, match="action 5 of environment 0 is out of range: expected 0 to 2"):
        pool.step_round(0, np.array([5, 5]))
    pool.step_round(0, np.array([0, 2]))
    assert arrays["reward"].tolist() == [[5.0, 7.0]]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("env_id", ["test/Pair-v0", "FrozenLake-v1", "Blackjack-v1"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_array_holds_what_gymnasiums_wrapper_gives(env_id: str, mode: str):
    """Choices, tuples and dictionaries are flattened as by FlattenObservation, integers as float32."""
    theirs = gymnasium.wrappers.FlattenObservation(gymnasium.make(env_id))
    pool = native.make(env_id, 1, one_array=True, vectorization_mode=mode)
    spec = pool.environment["observation"]
    assert spec["shape"] == theirs.observation_space.shape
    assert spec["dtype"] == ("float64" if "Pair" in env_id else "float32")
    expected, found = theirs.reset(seed=3)[0], pool.reset(seed=3)[0][0]
    for action in [5, 6, 5] if "Pair" in env_id else [1, 0, 0]:
        assert np.array_equal(found, expected)
        expected, _, terminated, _, _ = theirs.step(action)
        found = pool.step(np.array([action]))[0][0]
        if terminated:
            break
    assert np.array_equal(found, expected)
    pool.close()


def unplugged(*_: Any, **__: Any) -> Any:
    raise OSError("the cable is out")


@pytest.mark.usefixtures("registered")
def test_failing_environment_is_named_and_needs_a_reset(monkeypatch: pytest.MonkeyPatch):
    """The error says what was thrown; the pool continues after a reset."""
    pool = native.make("test/Pair-v0", 2)
    pool.reset(seed=0)
    Pair.fails = True
    with pytest.raises(
        RuntimeError, match=r"test/Pair-v0: an environment failed in step\(\): OSError: the cable is out"
    ):
        pool.step(np.array([5, 5]))
    Pair.fails = False
    with pytest.raises(RuntimeError, match="not every environment is ready"):
        pool.step(np.array([5, 5]))
    pool.reset(seed=0)
    pool.step(np.array([5, 5]))
    with monkeypatch.context() as patched:
        patched.setattr(Pair, "reset", unplugged)
        with pytest.raises(OSError, match="the cable is out"):
            pool.reset(seed=1)
    with pytest.raises(ValueError, match="reset_mask: expected a reset of all environments first"):
        pool.reset(seed=1, options={"reset_mask": np.array([True, False])})
    with pytest.raises(RuntimeError, match="not every environment is ready"):
        pool.step(np.array([5, 5]))


@pytest.mark.usefixtures("registered")
def test_custom_vector_environment_keeps_its_mode():
    """An id whose vector environment has one mode refuses another mode, and rounds, by name."""
    pool = native.make("test/NextStepOnly-v0", 2)
    pool.reset_ids(np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="brings resets as NextStep, and SameStep is needed"):
        pool.begin_round(**buffers(pool, 1))
    with pytest.raises(ValueError, match="brings resets as NextStep, and SameStep is needed"):
        native.make("test/NextStepOnly-v0", 2, autoreset_mode="SameStep")


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_saved_state_is_the_actions_since_the_seeds(kind: tuple[str, dict[str, Any]]):
    """A pool in another process resumes from it as the first does: the same rounds, and the same next state."""
    env_id, arguments = kind
    pool, other = (native.make(env_id, NUM_ENVS, **arguments) for _ in range(2))
    pool.reset_ids(np.arange(5, 5 + NUM_ENVS, dtype=np.uint64))
    for seed, steps in enumerate((20, 1, 19)):
        play_round(pool, steps, seed)
    other.restore(pool.save())
    assert_same(play_round(pool, 8, 9), play_round(other, 8, 9))
    assert_same(pool.save(), other.save())
    pool.reset_ids(np.arange(NUM_ENVS, dtype=np.uint64))
    other.restore(pool.save())
    assert_same(play_round(pool, 8, 9), play_round(other, 8, 9))


class OneSeed(CartPoleVectorEnv):
    """A vector environment of its own, which takes one seed for all of its environments, as Gymnasium's own do."""


@pytest.fixture
def one_seed():
    gymnasium.register("test/OneSeed-v0", vector_entry_point=OneSeed)
    yield "test/OneSeed-v0"
    del gymnasium.registry["test/OneSeed-v0"]


def test_a_vector_environment_that_takes_one_seed_has_the_first_in_rounds(one_seed: str):
    """A run seeds each environment: equal seeds give equal episodes. A user's own seeds are refused by name."""
    starts = []
    for seeds in ([5, 9], [5, 9], [6, 9]):
        with closing(native.make(one_seed, 2)) as pool:
            pool.reset_ids(np.array(seeds, np.uint64))
            starts.append(pool.observation)
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])
    assert not np.array_equal(*starts[0])
    with closing(native.make(one_seed, 2)) as pool:
        said = "does not take a seed for each environment .*; give one number, or choose vectorization_mode='sync'"
        with pytest.raises(ValueError, match=said):
            pool.reset(seed=[5, 9])
        assert np.array_equal(pool.reset(seed=5)[0], starts[0])
