"""Environments with agents, with PettingZoo's interface: PettingZoo's own checks, and equality to the pool."""

import numpy as np
import pytest

from penstock import native

from ...support.environments.leaving import LEAVING

pettingzoo_test = pytest.importorskip("pettingzoo.test", reason="comes with penstock-rl[pettingzoo]")

IDS = ["simple_spread_v3", "simple_spread_continuous_v3"]


@pytest.mark.parametrize("env_id", IDS)
def test_parallel_environments_pass_pettingzoos_checks(env_id):
    """Interface and seeds."""
    pettingzoo_test.parallel_api_test(native.make_pettingzoo(env_id), num_cycles=60)
    pettingzoo_test.parallel_seed_test(lambda: native.make_pettingzoo(env_id), num_cycles=60)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.filterwarnings("ignore:.*infinity.*:UserWarning", "ignore:.*should be.*:UserWarning")
def test_environments_by_turns_pass_pettingzoos_checks(env_id):
    """Interface and seeds."""
    pettingzoo_test.api_test(native.make_pettingzoo(env_id, by_turns=True), num_cycles=60)
    pettingzoo_test.seed_test(lambda: native.make_pettingzoo(env_id, by_turns=True), num_cycles=60)


def test_an_environment_equals_the_pools():
    """Observations, rewards and ends, for the same seed and actions."""
    env, pool = native.make_pettingzoo("simple_spread_v3"), native.make("simple_spread_v3", 1)
    seen, shown = env.reset(seed=3)[0], pool.reset(seed=3)[0]
    generator = np.random.default_rng(0)
    for t in range(25):
        np.testing.assert_array_equal(np.stack(list(seen.values())), shown[0])
        action = generator.integers(5, size=3)
        seen, rewards, _, truncations, _ = env.step(dict(zip(env.agents, action.tolist(), strict=True)))
        shown, reward, _, truncated, _ = pool.step(action[None])
        np.testing.assert_array_equal(list(rewards.values()), reward[0])
        assert all(truncations.values()) == truncated[0] == (t == 24)
    assert env.agents == []


@pytest.mark.slow
def test_agents_that_leave_are_terminated():
    """An agent that its mask allows nothing; masks are part of observations."""
    native.load(f"{LEAVING}\n")
    env = native.make_pettingzoo("Leaving-v0")
    sizes = set()
    for seed in range(5):
        seen, _ = env.reset(seed=seed)
        while env.agents:
            sizes.add(len(env.agents))
            actions = {agent: int(seen[agent]["action_mask"].argmax()) for agent in env.agents}
            seen, _, terminations, truncations, _ = env.step(actions)
            assert all(terminations[agent] or truncations[agent] for agent in seen if agent not in env.agents)
    assert sizes == {1, 2}


def test_mistakes_are_refused_by_name():
    """One agent, an action that is missing or wrong, a step without an episode."""
    with pytest.raises(ValueError, match="CartPole-v1 has one agent"):
        native.make_pettingzoo("CartPole-v1")
    env = native.make_pettingzoo("simple_spread_v3")
    with pytest.raises(RuntimeError, match="no episode is running"):
        env.step({})
    env.reset(seed=0)
    with pytest.raises(ValueError, match="no action of agent_1, agent_2"):
        env.step({"agent_0": 0})
    with pytest.raises(ValueError, match="the action of agent_2 is 5, expected one of Discrete"):
        env.step({"agent_0": 0, "agent_1": 0, "agent_2": 5})
