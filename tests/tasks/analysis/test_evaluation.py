"""Evaluation is a function of the snapshot and the key, and equals Gymnasium's environments played one by one."""

import gymnasium
import numpy as np
import pytest
import torch

from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError, GangError
from penstock.storage.refs import SnapshotRef, snapshot_name
from penstock.storage.shards.codec import allocate
from penstock.storage.tensors import save_tensors
from penstock.tasks.analysis.evaluation import evaluate_snapshot
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.roles.stepping.protocol import ROUND_COLUMNS
from penstock.tasks.runtime.run_context import RunContext
from penstock.tasks.seeds import Purpose, environment_seeds

from ..conftest import MakeContext

EPISODES = 6


def published(context: RunContext, seed: int = 1, version: int = 4) -> SnapshotRef:
    """A snapshot of a policy that is not near uniform, as the learner stores it."""
    policy = context.algorithm.init(seed).params["policy"]
    with torch.no_grad():
        policy.flat.mul_(20)
    arrays = {f"policy/{name}": value.detach().numpy() for name, value in policy.items()}
    data = save_tensors(arrays, {"version": version})
    ref = SnapshotRef(snapshot_name(version, digest(data)), digest(data), len(data), version)
    context.run.store.write(ref.name, [memoryview(data)])
    return ref


@pytest.fixture(params=["CartPole-v1", "Pendulum-v1"])
def context(request: pytest.FixtureRequest, make_context: MakeContext) -> RunContext:
    """Episodes of CartPole end early, those of Pendulum at the limit."""
    return make_context({"environment": {"id": request.param, "max_episode_steps": 20}})


def test_the_same_key_gives_the_same_result(context: RunContext):
    """Seconds aside, whatever ran before."""
    ref = published(context)
    first = evaluate_snapshot(context, context.run.store, ref, EPISODES, key=0)
    torch.manual_seed(3)
    other = evaluate_snapshot(context, context.run.store, ref, EPISODES, key=1)
    again = evaluate_snapshot(context, context.run.store, ref, EPISODES, key=0)
    for result in (first, other, again):
        assert result.pop("seconds") > 0
    assert again == first
    if context.environment.name == "Pendulum-v1":
        assert other["mean_return"] != first["mean_return"], "another key should give other seeds"


def test_it_ends_where_it_must(context: RunContext):
    """Before the next step, by the error that says why."""
    steps = iter(range(3))

    def check() -> None:
        if next(steps, None) is None:
            raise GangError("its task was cancelled")

    with pytest.raises(GangError, match="its task was cancelled"):
        evaluate_snapshot(context, context.run.store, published(context), EPISODES, key=2, check=check)


def test_it_equals_gymnasiums_environments(context: RunContext):
    """Every episode counts until its first end and no further, with the likeliest action, from its key's own seed."""
    ref = published(context)
    result = evaluate_snapshot(context, context.run.store, ref, EPISODES, key=2)
    params = load_snapshot(memoryview(bytearray(context.run.store.read(ref.name))), ref)
    seeds = environment_seeds(context.config.seed, Purpose.EVALUATION, 2, env_ids=range(EPISODES))
    returns, lengths = [], []
    for seed in seeds:
        environment = gymnasium.make(context.environment.name, max_episode_steps=20, disable_env_checker=True)
        observation, _ = environment.reset(seed=int(seed))
        rewards, ended = [], False
        while not ended:
            with torch.no_grad():
                batch = torch.from_numpy(np.asarray(observation, dtype=np.float32)).unsqueeze(0)
                noise = torch.zeros(1, *context.algorithm.noise.shape)
                rows, _ = context.algorithm.act(params, None, batch, noise)
            observation, reward, terminated, truncated, _ = environment.step(rows["action"][0].numpy())
            rewards.append(float(reward))
            ended = terminated or truncated
        returns.append(sum(rewards))
        lengths.append(len(rewards))
    assert result["version"] == 4
    assert result["episodes"] == EPISODES
    assert result["mean_return"] == pytest.approx(np.mean(returns), rel=1e-4)
    assert result["min_return"] == pytest.approx(min(returns), rel=1e-4)
    assert result["max_return"] == pytest.approx(max(returns), rel=1e-4)
    assert result["mean_length"] == np.mean(lengths)
    if context.environment.name == "CartPole-v1":
        assert min(lengths) < max(lengths), "episodes should end at different steps for this to say something"


def test_a_damaged_snapshot_is_not_evaluated(make_context: MakeContext):
    """It is named."""
    context = make_context()
    ref = published(context)
    data = bytearray(context.run.store.read(ref.name))
    data[-1] ^= 1
    context.run.store.write(ref.name, [bytes(data)])
    with pytest.raises(CorruptObjectError, match=ref.name):
        evaluate_snapshot(context, context.run.store, ref, EPISODES, key=0)


def test_a_step_of_several_agents_counts_with_their_mean_reward(make_context: MakeContext):
    """As an episode in a shard does: what acting greedily on the same seeds stores is what evaluation says."""
    settings = {"environment": {"id": "simple_spread_v3", "num_envs": EPISODES, "envs_per_tile": EPISODES}}
    context = make_context({**settings, "algorithm": {"name": "mappo"}})
    ref = published(context)
    result = evaluate_snapshot(context, context.run.store, ref, EPISODES, key=0)
    params = load_snapshot(memoryview(bytearray(context.run.store.read(ref.name))), ref)
    pool = context.make_pool(EPISODES)
    pool.reset_ids(environment_seeds(context.config.seed, Purpose.EVALUATION, 0, env_ids=range(EPISODES)))
    arrays = allocate({name: context.columns[name] for name in ROUND_COLUMNS}, 5, EPISODES)
    pool.begin_round(*arrays.values())
    for step in range(5):
        observation, noise = (
            torch.from_numpy(arrays["observation"][step]),
            torch.zeros(EPISODES, *context.algorithm.noise.shape),
        )
        pool.step_round(step, context.algorithm.act(params, None, observation, noise)[0]["action"].numpy())
    episodes = pool.end_round().episodes
    assert result["mean_return"] == pytest.approx(episodes["return"].mean(), rel=1e-12)
    assert result["mean_return"] == pytest.approx(arrays["reward"].mean(-1).sum(0).mean(), rel=1e-5)
    assert result["mean_length"] == 5
