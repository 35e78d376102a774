"""Pools as TorchRL environments: its own checks pass, and what collectors gather is what Gymnasium gives."""

import warnings
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict.nn import TensorDictModule
from torchrl.envs import EnvBase, RewardSum, TransformedEnv, check_env_specs
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from penstock import native
from penstock.native.trainers import torchrl

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # one of its own classes inherits from a deprecated one
    from torchrl.collectors import Collector

NUM_ENVS = 4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: the networks are tiny, and more threads than cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cartpole() -> torchrl.PoolEnv:
    return torchrl.make("CartPole-v1", NUM_ENVS, max_episode_steps=25)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_torchrl_checks_pass(env_id: str):
    """TorchRL's own check: specs, shapes and types of everything that a rollout gives, real against promised."""
    env = torchrl.make(env_id, NUM_ENVS, max_episode_steps=25)
    check_env_specs(env, seed=1)
    check_env_specs(TransformedEnv(env, RewardSum()), seed=1)
    assert env.batch_size == torch.Size([NUM_ENVS])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_rollouts_equal_gymnasium(env_id: str):
    """For the same seeds and actions, rows and their successors are Gymnasium's, over the resets of single rows."""
    env = torchrl.make(env_id, NUM_ENVS)
    env.set_seed(9)
    torch.manual_seed(0)
    rollout = env.rollout(260, break_when_any_done=False)
    theirs = gymnasium.make_vec(env_id, NUM_ENVS, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED})
    observation, _ = theirs.reset(seed=9)
    for t in range(260):
        row, following = rollout[:, t], rollout[:, t]["next"]
        assert np.array_equal(row["observation"], observation)
        observation, reward, terminated, truncated, _ = theirs.step(row["action"].numpy())
        assert np.array_equal(following["observation"], observation)
        assert np.array_equal(following["reward"][:, 0], reward.astype(np.float32))
        assert np.array_equal(following["terminated"][:, 0], terminated)
        assert np.array_equal(following["truncated"][:, 0], truncated)
        done = terminated | truncated
        assert np.array_equal(following["done"][:, 0], done)
        if done.any():
            observation, _ = theirs.reset(options={"reset_mask": done.copy()})
    assert rollout["next", "done"].sum() >= NUM_ENVS


def test_a_seed_holds_for_the_next_full_reset(cartpole: EnvBase):
    """set_seed leaves running episodes alone, even when one of them is reset, and the next start of all is seeded."""
    cartpole.set_seed(3)
    first = cartpole.reset()["observation"]
    cartpole.set_seed(3)
    mask = torch.tensor([[True], [False], [False], [False]])
    partial = cartpole.reset(cartpole.reset().clone().set("_reset", mask))
    assert not torch.equal(partial["observation"][0], first[0])
    cartpole.set_seed(3)
    assert torch.equal(cartpole.reset()["observation"], first)


def test_a_refused_seed_is_forgotten(cartpole: EnvBase):
    """The resets after it are as if it had not been given."""
    with pytest.raises(ValueError, match="seed"):
        cartpole.set_seed(-1)
    cartpole.reset()


def test_rollouts_go_on_until_all_are_done(cartpole: EnvBase):
    """break_when_all_done steps the environments that are still going, and leaves the others where they ended."""
    cartpole.set_seed(0)
    torch.manual_seed(1)
    rollout = cartpole.rollout(100, break_when_any_done=False, break_when_all_done=True)
    lengths = rollout["next", "done"][..., 0].int().argmax(1)
    assert lengths.max() == rollout.shape[1] - 1
    assert lengths.min() < lengths.max()
    for row, length in zip(rollout, lengths, strict=True):
        assert not row["next", "done"][:length].any()
        assert row["next", "done"][length:].all()
        assert (row["next", "observation"][length:] == row["next", "observation"][length]).all()


def test_observations_share_the_pools_memory(cartpole: EnvBase):
    """A step hands its memory on, and later steps write elsewhere."""
    tensordict = cartpole.reset()
    seen = []
    for _ in range(3):
        tensordict = cartpole.step(tensordict.set("action", torch.ones(NUM_ENVS, dtype=torch.int64)))["next"]
        seen.append((tensordict["observation"], tensordict["observation"].clone()))
    assert len({one.data_ptr() for one, _ in seen}) == 3
    assert all(one.data_ptr() % 64 == 0 and torch.equal(one, copy) for one, copy in seen)


@pytest.mark.slow
def test_a_collector_and_a_loss_take_it(cartpole: EnvBase):
    """A collector fills frames across episodes, and a PPO update on them changes the policy with a finite loss."""
    torch.manual_seed(0)
    actor = ProbabilisticActor(
        TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
    collector = Collector(
        cartpole, actor, frames_per_batch=200, total_frames=400, auto_register_policy_transforms=False
    )
    before = [one.detach().clone() for one in actor.parameters()]
    ended = 0
    for batch in collector:
        assert batch.shape == (NUM_ENVS, 50)
        ended += int(batch["next", "done"].sum())
        advantage(batch)
        parts = loss(batch)
        total = parts["loss_objective"] + parts["loss_critic"] + parts["loss_entropy"]
        assert torch.isfinite(total)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    collector.shutdown()
    assert ended > 0
    assert all(not torch.equal(old, new) for old, new in zip(before, actor.parameters(), strict=True))
    with pytest.raises(RuntimeError, match="closed"):
        cartpole.pool.step(np.zeros(NUM_ENVS, np.int64))


def test_environments_of_other_libraries():
    """Environments that native.make wraps pass the same checks; a step of some of its environments alone is refused."""
    env = torchrl.make("FrozenLake-v1", NUM_ENVS)
    check_env_specs(env, seed=1)
    assert env.rollout(50, break_when_any_done=False)["next", "done"].any()
    with pytest.raises(TypeError, match=r"all of its environments or none.*number of steps"):
        env.rollout(500, break_when_any_done=False, break_when_all_done=True)
    env.close()


def test_pools_that_reset_by_themselves_are_refused():
    """TorchRL would reset them a second time."""
    with pytest.raises(ValueError, match=r"SAME_STEP.*autoreset_mode='Disabled'"):
        torchrl.PoolEnv(native.make("CartPole-v1", 2, autoreset_mode="SameStep"))
