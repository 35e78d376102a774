"""Pools in the trainers people have: equal to what those make of Gymnasium's own environments, and learning."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from penstock import native
from penstock.native.trainers import stable_baselines3 as sb3

NUM_ENVS = 5
DOCUMENT = Path(__file__).parents[3] / "docs" / "trainers.md"
BLOCKS = re.findall(
    r"^## (.+?)\n.*?^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: the networks are tiny, and more threads than cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def dummy(env_id: str) -> DummyVecEnv:
    return DummyVecEnv([lambda: Monitor(gymnasium.make(env_id)) for _ in range(NUM_ENVS)])


def random_actions(env_id: str, steps: int) -> np.ndarray:
    generator = np.random.default_rng(3)
    if env_id == "CartPole-v1":
        return generator.integers(0, 2, (steps, NUM_ENVS))
    return generator.uniform(-2, 2, (steps, NUM_ENVS, 1)).astype(np.float32)


def assert_rows_match(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Infos of one environment: DummyVecEnv says False where ours says nothing."""
    assert ours.get("TimeLimit.truncated", False) == theirs["TimeLimit.truncated"]
    assert ("terminal_observation" in ours) == ("terminal_observation" in theirs)
    if "terminal_observation" in ours:
        assert ours["terminal_observation"].dtype == theirs["terminal_observation"].dtype
        assert np.array_equal(ours["terminal_observation"], theirs["terminal_observation"])
        assert ours["episode"].keys() == theirs["episode"].keys()
        assert round(ours["episode"]["r"], 6) == theirs["episode"]["r"]
        assert ours["episode"]["l"] == theirs["episode"]["l"]
    assert ours.keys() - {"TimeLimit.truncated"} == theirs.keys() - {"TimeLimit.truncated"}


@pytest.mark.parametrize(("env_id", "steps"), [("CartPole-v1", 300), ("Pendulum-v1", 450)])
def test_sb3_trajectories_equal_dummy_vec_env(env_id: str, steps: int):
    """Same seeds and actions give what DummyVecEnv gives over gymnasium.make, infos included, over many episodes."""
    ours, theirs = sb3.make(env_id, NUM_ENVS, 2), dummy(env_id)
    assert ours.seed(11) == theirs.seed(11)
    for left, right in [(ours.reset(), theirs.reset()), (ours.reset(), theirs.reset())]:
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    ended = 0
    for action in random_actions(env_id, steps):
        left, right = ours.step(action), theirs.step(action)
        for mine, other in zip(left[:3], right[:3], strict=True):
            assert mine.dtype == other.dtype
            assert np.array_equal(mine, other)
        for mine, other in zip(left[3], right[3], strict=True):
            assert_rows_match(mine, other)
        ended += int(left[2].sum())
    assert ended > NUM_ENVS
    ours.close()


def test_sb3_infos_belong_to_one_environment_and_step():
    """Wrappers and callbacks write into infos: nothing that is written there shows in another row or step."""
    ours = sb3.make("CartPole-v1", NUM_ENVS)
    ours.reset()
    infos = ours.step(np.zeros(NUM_ENVS, np.int64))[3]
    infos[0]["note"] = 1
    ours.reset_infos[0]["note"] = 1
    assert infos[1:] == [{}] * (NUM_ENVS - 1)
    assert ours.step(np.zeros(NUM_ENVS, np.int64))[3] == [{}] * NUM_ENVS
    assert ours.reset_infos[1:] == [{}] * (NUM_ENVS - 1)


def test_sb3_any_vector_environment_in_same_step_mode():
    """A vector environment of Gymnasium's own is taken as a pool is: its infos become rows, its methods are called."""
    theirs = gymnasium.make_vec(
        "CartPole-v1", NUM_ENVS, "sync", vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    )
    ours, pool = sb3.PoolVecEnv(theirs), sb3.make("CartPole-v1", NUM_ENVS)
    ours.seed(0)
    pool.seed(0)
    assert np.array_equal(ours.reset(), pool.reset())
    for action in random_actions("CartPole-v1", 60):
        left, right = ours.step(action), pool.step(action)
        assert np.array_equal(left[0], right[0])
        for mine, other in zip(left[3], right[3], strict=True):
            assert mine.keys() == other.keys() - {"episode"}
    assert ours.get_attr("gravity") == pool.get_attr("gravity") == [9.8] * NUM_ENVS
    ours.set_attr("gravity", 5.0)
    assert ours.get_attr("gravity", indices=[0, 2]) == [5.0, 5.0]
    assert [row[0].shape for row in ours.env_method("reset", seed=1)] == [(4,)] * NUM_ENVS
    with pytest.raises(AttributeError, match="give no indices"):
        ours.env_method("reset", indices=0)


def test_sb3_environments_of_other_libraries():
    """Environments that native.make wraps are accepted, and their Python objects answer to attributes."""
    ours, theirs = sb3.make("FrozenLake-v1", NUM_ENVS, is_slippery=True), dummy("FrozenLake-v1")
    ours.seed(2)
    theirs.seed(2)
    assert np.array_equal(ours.reset(), theirs.reset())
    for action in np.random.default_rng(0).integers(0, 4, (60, NUM_ENVS)):
        left, right = ours.step(action), theirs.step(action)
        assert all(np.array_equal(mine, other) for mine, other in zip(left[:3], right[:3], strict=True))
        for mine, other in zip(left[3], right[3], strict=True):
            assert mine.get("terminal_observation") == other.get("terminal_observation")
            assert "prob" in mine  # its value passes through Gymnasium's integer array when an episode ended
    assert ours.get_attr("spec")[0].id == "FrozenLake-v1"
    assert ours.get_attr("s") == theirs.get_attr("s")
    ours.close()


def test_sb3_attributes_and_methods():
    """Callbacks find and set attributes environment by environment, and learn what a pool cannot do."""
    env = sb3.make("CartPole-v1", 3, gravity=[9.0, 9.5, 10.0])
    assert env.get_attr("gravity", indices=[2, 0]) == [10.0, 9.0]
    assert env.get_attr("render_mode", indices=1) == [None]
    assert env.get_attr("action_space") == [gymnasium.spaces.Discrete(2)] * 3
    assert env.has_attr("force_mag")
    assert not env.has_attr("no_such")
    env.reset()
    assert not env.has_attr("no_such")
    env.set_attr("gravity", 1.0, indices=[0, 2])
    assert env.get_attr("gravity") == [1.0, 9.5, 1.0]
    env.set_attr("gravity", 5.0, indices=[-1])
    assert env.get_attr("gravity") == [1.0, 9.5, 5.0]
    with pytest.raises(IndexError):
        env.set_attr("gravity", 1.0, indices=[3])
    with pytest.raises(AttributeError, match="no_such"):
        env.set_attr("no_such", 1.0)
    with pytest.raises(AttributeError, match="compute_reward"):
        env.env_method("compute_reward")
    assert env.env_is_wrapped(Monitor) == [True] * 3
    assert env.env_is_wrapped(gymnasium.wrappers.TimeLimit, indices=0) == [False]
    env.set_options({"level": 0.0})
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.step(np.zeros(3, np.int64))


def test_sb3_refuses_pools_it_would_misread():
    """In another autoreset mode the first observation of an episode would count as the successor of the last."""
    with pytest.raises(ValueError, match=r"NEXT_STEP.*autoreset_mode='SameStep'"):
        sb3.PoolVecEnv(native.make("CartPole-v1", 2))


@pytest.mark.parametrize("env_id", ["simple_spread_v3", "pettingzoo/mpe/simple_spread_v3"])
def test_sb3_refuses_teams(env_id: str):
    """One reward an environment would be taken for that of all agents, by any library that steps them."""
    if "/" in env_id:
        pytest.importorskip("mpe2", reason="comes with penstock-rl[pettingzoo]")
    with pytest.raises(ValueError, match="3 agents with a reward each"):
        sb3.make(env_id, 2)


def test_sb3_learns_bits():
    """Its Bernoulli policies sample floats, of 0 and 1."""
    gymnasium.register("test/Bits-v0", Bits)
    ours = sb3.make("test/Bits-v0", 2)
    PPO("MlpPolicy", ours, n_steps=8, batch_size=8, device="cpu").learn(16)
    with pytest.raises(ValueError, match=r"expected whole numbers, got 0\.5"):
        ours.step(np.full((2, 3), 0.5, np.float32))
    ours.close()
    del gymnasium.registry["test/Bits-v0"]


class Bits(gymnasium.Env[Any, Any]):
    """Takes bits, and pays for each that is set."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.MultiBinary(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(np.sum(action)), False, False, {}


def test_sb3_learns_from_dict_observations():
    """After a reset as after a step they are dictionaries of arrays."""
    gymnasium.register("test/Parts-v0", Parts)
    try:
        ours, theirs = sb3.make("test/Parts-v0", 2), DummyVecEnv([Parts, Parts])
        for observations in zip(
            (ours.reset(), ours.step([0, 1])[0]), (theirs.reset(), theirs.step([0, 1])[0]), strict=True
        ):
            mine, other = observations
            assert mine.keys() == other.keys() == {"numbers", "place"}
            assert all(np.array_equal(mine[key], other[key]) for key in mine)
        PPO("MultiInputPolicy", ours, n_steps=8, batch_size=8, device="cpu").learn(16)
        ours.close()
    finally:
        del gymnasium.registry["test/Parts-v0"]


class Parts(gymnasium.Env[Any, Any]):
    """Shows the step in two parts."""

    observation_space = gymnasium.spaces.Dict(
        numbers=gymnasium.spaces.Box(-9, 9, (3,), np.float32), place=gymnasium.spaces.Discrete(9)
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._shown(), float(action), False, self.steps == 5, {}

    def _shown(self) -> Any:
        return {"numbers": np.full(3, self.steps, np.float32), "place": self.steps}


def test_sb3_wrappers_work_on_a_pool():
    """Its wrappers, which rewrite terminal observations in place, give what they give over DummyVecEnv."""
    stacks = [VecNormalize(VecFrameStack(env, 3)) for env in (sb3.make("CartPole-v1", 5), dummy("CartPole-v1"))]
    for stack in stacks:
        stack.seed(4)
    assert np.array_equal(stacks[0].reset(), stacks[1].reset())
    for action in random_actions("CartPole-v1", 120):
        left, right = (stack.step(action) for stack in stacks)
        assert np.array_equal(left[0], right[0])
        for mine, other in zip(left[3], right[3], strict=True):
            if "terminal_observation" in other:
                assert np.array_equal(mine["terminal_observation"], other["terminal_observation"])


@pytest.mark.slow
def test_sb3_ppo_learns_the_same_on_a_pool():
    """PPO over a pool goes through the very weights that it goes through over DummyVecEnv, and learns."""
    models = [
        PPO("MlpPolicy", env, n_steps=64, batch_size=80, n_epochs=4, seed=1, device="cpu").learn(3200)
        for env in (sb3.make("CartPole-v1", NUM_ENVS), dummy("CartPole-v1"))
    ]
    left, right = (model.policy.state_dict() for model in models)
    assert all(bool((left[name] == right[name]).all()) for name in right)
    assert [round(one["r"], 6) for one in models[0].ep_info_buffer] == [one["r"] for one in models[1].ep_info_buffer]
    envs = sb3.make("CartPole-v1", 4)
    envs.seed(0)
    mean, _ = evaluate_policy(models[0], envs, 8)
    assert mean > 60


def test_sb3_off_policy_bootstraps_at_time_limits():
    """The replay buffer of an off-policy algorithm holds last observations and timeouts, not the next episode's."""
    model = SAC(
        "MlpPolicy",
        sb3.make("Pendulum-v1", 2, max_episode_steps=20),
        learning_starts=30,
        seed=0,
        device="cpu",
        buffer_size=200,
        batch_size=16,
    ).learn(90)
    buffer = model.replay_buffer
    timeouts = buffer.timeouts[:45]
    assert np.array_equal(np.flatnonzero(timeouts[:, 0]), [19, 39])
    assert np.array_equal(timeouts, buffer.dones[:45])
    assert not np.array_equal(buffer.next_observations[19], buffer.observations[20])
    assert np.array_equal(buffer.next_observations[18], buffer.observations[19])


def test_missing_trainer_names_the_extra():
    """Without the trainer, importing its adapter says which extra brings it."""
    program = "import sys\nsys.modules['stable_baselines3'] = None\nimport penstock.native.trainers.stable_baselines3"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'penstock-rl[trainers]'" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("block", [pytest.param(code, id=heading) for heading, code in BLOCKS])
def test_examples_of_the_document_run(block: str):
    """Every block of docs/trainers.md runs as it stands there, and what it asserts holds."""
    exec(compile(block, str(DOCUMENT), "exec"), {"__name__": "__main__"})
