"""A policy acts outside of its run as the run acts, for one observation and for a batch."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from penstock.tasks.analysis.evaluation import evaluate_snapshot
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.inference.loading import load_policy
from penstock.tasks.inference.policy import Policy
from penstock.tasks.runtime.run_context import RunContext
from penstock.tasks.seeds import Purpose, environment_seeds
from penstock.tasks.setup.config.loading import merge

from ...support.environments.structured_environments import SPACES
from ..conftest import MakeContext
from .conftest import KINDS
from .support import as_stored, commit, policy_of

ENVS, STEPS = 6, 12


def played(
    context: RunContext, policy: Policy, *, deterministic: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the observations and the policy's actions in the run's environment, with episodes ending in between."""
    pool = make_pool(context.config, ENVS, AutoresetMode.SAME_STEP)
    pool.reset_ids(environment_seeds(1, Purpose.ENVIRONMENT, env_ids=range(ENVS)))
    policy.reset()
    for _ in range(STEPS):
        observation = pool.observation.copy()
        action = policy.act_stored(observation, deterministic=deterministic)
        yield observation, action
        _, _, terminated, truncated, _ = pool.step(action)
        policy.reset(terminated | truncated)


def test_greedy_actions_equal_the_algorithms(kind_context: RunContext):
    """With zero noise, the snapshot's parameters, and a memory that starts empty where an episode does."""
    policy = policy_of(kind_context)
    algorithm, ref = kind_context.algorithm, kind_context.run.log.read(0).snapshots[-1]
    params = load_snapshot(memoryview(bytearray(kind_context.run.store.read(ref.name))), ref)
    pool = make_pool(kind_context.config, ENVS, AutoresetMode.SAME_STEP)
    pool.reset_ids(environment_seeds(1, Purpose.ENVIRONMENT, env_ids=range(ENVS)))
    carry, fresh = algorithm.initial_carry(ENVS), algorithm.initial_carry(ENVS)
    seen, ended = set(), 0
    for observation, action in played(kind_context, policy):
        np.testing.assert_array_equal(observation, pool.observation)
        with torch.inference_mode():
            noise = torch.zeros(ENVS, *algorithm.noise.shape)
            rows, carry = algorithm.act(params, carry, torch.from_numpy(pool.observation), noise)
        np.testing.assert_array_equal(action, rows["action"].numpy())
        _, _, terminated, truncated, _ = pool.step(rows["action"].numpy())
        over = torch.from_numpy(terminated | truncated)
        ended += int(over.sum())
        if carry is not None:
            carry = torch.where(over.view(-1, *[1] * (carry.dim() - 1)), fresh, carry)
        seen |= {row.tobytes() for row in action}
    assert len(seen) > 1, "a policy that always does the same shows nothing"
    assert ended, "no episode ended"


@pytest.mark.parametrize("kind", ["ppo", "recurrent", "cloned memory"])
def test_it_reaches_the_evaluations_return(make_context: MakeContext, kind: str):
    """Acting one observation at a time, as a user would, gives the return that the run's evaluation says.

    With a memory from each episode's start, of a run that acted and of one that cloned stored actions.
    """
    context = make_context(merge(KINDS[kind], {"environment": {"max_episode_steps": 40}}))
    policy = policy_of(context)
    expected = evaluate_snapshot(context, context.run.store, context.run.log.read(0).snapshots[-1], 3, key=0)
    returns = []
    for seed in environment_seeds(context.config.seed, Purpose.EVALUATION, 0, env_ids=range(3)):
        pool = make_pool(context.config, 1, AutoresetMode.SAME_STEP)
        pool.reset_ids(np.array([seed], dtype=np.uint64))
        policy.reset()
        total, over = 0.0, False
        while not over:
            action = policy.act(pool.observation[0])
            _, reward, terminated, truncated, _ = pool.step(action[None])
            total, over = total + float(reward[0]), bool(terminated[0] or truncated[0])
        returns.append(total)
    assert np.mean(returns) == pytest.approx(expected["mean_return"])


def test_a_row_of_a_batch_equals_the_observation_alone(kind_context: RunContext):
    """Its greedy action and its shape."""
    policy = policy_of(kind_context)
    for observation, action in list(played(kind_context, policy))[:1]:
        for row in range(ENVS):
            policy.reset()
            alone = policy.act_stored(observation[row])
            assert alone.shape == action[row].shape
            assert alone.dtype == action.dtype
            np.testing.assert_allclose(alone, action[row], rtol=1e-5, atol=1e-5)


def test_sampled_actions_differ_and_repeat(kind_context: RunContext):
    """They are drawn anew at each call, and are the same ones after loading again with the same seed."""
    address = f"{kind_context.run.root.url}/{kind_context.run.name}"
    first = policy_of(kind_context, seed=3)
    again, other = load_policy(address, seed=3), load_policy(address, seed=4)
    drawn = [
        [action.tobytes() for _, action in played(kind_context, policy, deterministic=False)]
        for policy in (first, again, other)
    ]
    assert drawn[0] == drawn[1]
    if kind_context.algorithm.noise.kind != "uniform":
        assert first.noise(4).tobytes() != first.noise(4).tobytes()


def test_predict_has_the_memory_that_act_keeps(kind_context: RunContext):
    """The signature of stable-baselines3: the memory goes in and out, and starts empty where an episode does."""
    policy = policy_of(kind_context)
    other = load_policy(f"{kind_context.run.root.url}/{kind_context.run.name}")
    state, starts = None, np.ones(ENVS, dtype=bool)
    pool = make_pool(kind_context.config, ENVS, AutoresetMode.SAME_STEP)
    pool.reset_ids(environment_seeds(1, Purpose.ENVIRONMENT, env_ids=range(ENVS)))
    for observation, action in played(kind_context, policy):
        predicted, state = other.predict(observation, state, starts, deterministic=True)
        np.testing.assert_allclose(as_stored(other, predicted), action, rtol=0, atol=1e-6)
        _, _, terminated, truncated, _ = pool.step(action)
        starts = terminated | truncated
    assert (state is not None) == policy.has_memory


@pytest.mark.parametrize("deterministic", [True, False])
def test_structured_actions_are_the_environments_own(make_context: MakeContext, deterministic: bool):
    """One action is in the environment's space, and those of a batch are in that of as many environments."""
    policy = policy_of(make_context(KINDS["structured"]))
    assert policy.action_space == SPACES["Hybrid"]
    observation = np.random.default_rng(1).uniform(-1, 1, (5, 2)).astype(np.float32)
    for row in observation:
        assert policy.action_space.contains(policy.act(row, deterministic=deterministic))
    together = policy.act(observation, deterministic=deterministic)
    assert batch_space(policy.action_space, 5).contains(together)
    if deterministic:
        alone = [policy.act(row)["gear"] for row in observation]
        np.testing.assert_array_equal(together["gear"], alone)


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (np.zeros(5, np.float32), r"shape \(5,\); CartPole-v1 has \(4,\), and a batch of B of them has \(B, 4\)"),
        (np.zeros((2, 3, 4), np.float32), r"shape \(2, 3, 4\)"),
        (np.zeros(4, np.complex64), r"dtype complex64; CartPole-v1 has float32"),
        ([["a", "b", "c", "d"]], r"dtype <U1; CartPole-v1 has float32"),
    ],
)
def test_another_observation_is_refused(make_context: MakeContext, observation: object, said: str):
    """The error says what was given and what the environment has."""
    with pytest.raises(ValueError, match=said):
        policy_of(make_context()).act(observation)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_by_their_place(make_context: MakeContext, value: float):
    """A network computes some action from them as well. The first one is named, of one observation and of a batch."""
    policy = policy_of(make_context())
    rows = np.zeros((3, 4), np.float32)
    policy.act(rows)
    rows[1:, 2] = value
    for act in (policy.act, policy.predict):
        with pytest.raises(ValueError, match=rf"with {value} \(row 1, place \[2\]\), expected finite numbers"):
            act(rows)
        with pytest.raises(ValueError, match=rf"with {value} \(row 0, place \[2\]\)"):
            act(rows[1])


def test_a_memory_of_another_batch_is_refused(make_context: MakeContext):
    """Rows of another number are other episodes."""
    policy = policy_of(make_context(KINDS["recurrent"]))
    policy.act(np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"2 observation\(s\), and a memory of 3 episode\(s\).*reset\(\)"):
        policy.act(np.zeros((2, 4), np.float32))
    policy.reset()
    policy.act(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"state has the shape \(1, 2\), expected \(2, 2, 8\)"):
        policy.predict(np.zeros((2, 4), np.float32), (np.zeros((1, 2), np.float32),))


def test_loading_imports_neither_prefect_nor_dask(make_context: MakeContext):
    """In a process of its own, with the public name; the policy knows where it comes from."""
    context = make_context()
    commit(context, None)
    address = f"{context.run.root.url}/{context.run.name}"
    script = (
        f"import sys, penstock; policy = penstock.load_policy({address!r}); "
        "print(policy.act([0.1, 0.2, 0.3, 0.4]), policy.origin.version, policy.observation_space.shape); "
        "print([name for name in ('prefect', 'distributed', 'dask') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0][2:] == "1 (4,)", done.stdout
    assert done.stdout.splitlines()[1] == "[]"


def test_a_policy_says_what_it_is(make_context: MakeContext):
    """Its run, version and settings."""
    context = make_context()
    ref = commit(context, None)[0]
    policy = load_policy("small", store=context.run.root.url)
    assert repr(policy) == f"<Policy for CartPole-v1: version 1 of run 'small' in {context.run.root.url}>"
    assert (policy.origin.stage, policy.origin.env_steps, policy.origin.digest) == (0, 100, ref.digest)
    assert policy.settings["environment"]["num_envs"] == 6
