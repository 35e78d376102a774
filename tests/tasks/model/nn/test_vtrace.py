"""V-trace against the paper's sum, written out for every environment alone, with episodes that end in every way."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from penstock.tasks.model.nn.returns import VTrace, successor_values, vtrace

from .test_returns import computed as computed_gae
from .test_returns import random_round

SETTINGS = [(0.98, 1.0, 1.0, 1.0), (0.9, 0.8, 2.0, 0.5), (1.0, 1.0, math.inf, math.inf), (0.95, 0.0, 1.0, 1.0)]


def off_policy_round(steps: int, envs: int, seed: int) -> dict[str, Any]:
    """A random round, float64, with ratios from about 1/8 to 8."""
    log_ratios = np.random.default_rng(seed + 100).normal(size=(steps, envs))
    return {**random_round(steps, envs, seed), "log_ratios": log_ratios}


def by_the_sum(
    round_: dict[str, Any], env: int, discount: float, decay: float, rho_limit: float, c_limit: float
) -> tuple[list[float], list[float]]:
    """Equation 1 as it stands: v_s = V_s + sum over t of discount^(t-s) * (product of c from s to t-1) * delta_t."""
    reward, value, after = (round_[name][:, env] for name in ("rewards", "values", "after"))
    terminated, truncated = round_["terminated"][:, env] != 0, round_["truncated"][:, env] != 0
    ratio = np.exp(round_["log_ratios"][:, env])
    rho, c = np.minimum(rho_limit, ratio), decay * np.minimum(c_limit, ratio)
    steps = len(reward)

    def last_of_episode(start: int) -> int:
        return next((step for step in range(start, steps) if terminated[step] or truncated[step]), steps - 1)

    def successor(step: int) -> float:
        if terminated[step]:
            return 0.0
        return float(after[step] if step == last_of_episode(step) else value[step + 1])

    def target(start: int) -> float:
        total = float(value[start])
        for step in range(start, last_of_episode(start) + 1):
            delta = rho[step] * (reward[step] + discount * successor(step) - value[step])
            total += discount ** (step - start) * np.prod(c[start:step]) * delta
        return total

    def advantage(step: int) -> float:
        following = successor(step) if step == last_of_episode(step) else target(step + 1)
        return float(reward[step] + discount * following - value[step])

    return [target(step) for step in range(steps)], [advantage(step) for step in range(steps)]


def computed(
    round_: dict[str, Any], discount: float, decay: float = 1.0, rho: float = math.inf, c: float = math.inf
) -> VTrace:
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in round_.items()}
    ends = (tensors["terminated"] | tensors["truncated"]).bool()
    ends[-1] = True
    rows = ends.flatten().nonzero().squeeze(-1)
    return vtrace(
        tensors["rewards"],
        tensors["values"],
        successor_values(tensors["values"], rows, tensors["after"].flatten()[rows]),
        tensors["terminated"],
        tensors["truncated"],
        tensors["log_ratios"],
        discount,
        trace_decay=decay,
        rho_limit=rho,
        c_limit=c,
    )


@pytest.mark.parametrize(("discount", "decay", "rho", "c"), SETTINGS)
def test_targets_and_advantages_equal_the_papers_sum(discount: float, decay: float, rho: float, c: float):
    """For terminated, truncated, both, and the round's end, clipped and not, with and without lambda."""
    round_ = off_policy_round(17, 8, seed=3)
    ends = set(zip(round_["terminated"].flat, round_["truncated"].flat, strict=True))
    assert ends == {(0, 0), (0, 1), (1, 0), (1, 1)}
    found = computed(round_, discount, decay, rho, c)
    expected = [by_the_sum(round_, env, discount, decay, rho, c) for env in range(8)]
    for index, tensor in enumerate(found):
        wanted = np.array([parts[index] for parts in expected]).T
        np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.0])
def test_targets_are_those_of_td_lambda_where_the_policies_are_equal(decay: float):
    """Then nothing is corrected: v is the value plus the generalised advantage, whatever the limits from 1 on."""
    round_ = {**random_round(17, 8, seed=5), "log_ratios": np.zeros((17, 8))}
    expected = torch.from_numpy(round_["values"]) + computed_gae(round_, 0.97, decay)
    for limit in (1.0, math.inf):
        torch.testing.assert_close(computed(round_, 0.97, decay, limit, limit).targets, expected, rtol=1e-12, atol=0)


def test_on_policy_targets_are_the_bootstrapped_returns():
    """With lambda 1 and equal policies, v is the discounted sum of rewards to the episode's or the round's end."""
    round_ = {**random_round(12, 6, seed=8), "log_ratios": np.zeros((12, 6))}
    found = computed(round_, 0.9)
    for env in range(6):
        following = 0.0
        for step in reversed(range(12)):
            terminated, truncated = round_["terminated"][step, env], round_["truncated"][step, env]
            if terminated:
                following = 0.0
            elif truncated or step == 11:
                following = round_["after"][step, env]
            following = round_["rewards"][step, env] + 0.9 * following
            assert found.targets[step, env].item() == pytest.approx(following, rel=1e-11)
            advantage = following - round_["values"][step, env]
            assert found.advantages[step, env].item() == pytest.approx(advantage, rel=1e-9, abs=1e-11)


HANDMADE = [
    # Discount 0.5, lambda 1, rewards 1, values 2, 4, 6, and 8 after the round; ratios 2, 0.5, 1 are clipped to 1, 0.5,
    # 1: deltas 1, 0 and -1 if nothing ends. v_2 = 6 - 1 = 5, v_1 = 4 + 0 + 0.5 * 0.5 * -1, v_0 = 2 + 1 + 0.5 * -0.25.
    pytest.param([0, 0, 0], [0, 0, 0], None, [2.875, 3.75, 5.0], [0.875, -0.5, -1.0], id="round ends"),
    # delta_1 = 0.5 * (1 - 4) = -1.5, and nothing follows.
    pytest.param([0, 1, 0], [0, 0, 0], 100.0, [2.25, 2.5, 5.0], [0.25, -3.0, -1.0], id="terminated"),
    # delta_1 = 0.5 * (1 + 0.5 * 10 - 4) = 1.
    pytest.param([0, 0, 0], [0, 1, 0], 10.0, [3.5, 5.0, 5.0], [1.5, 2.0, -1.0], id="truncated"),
    pytest.param([0, 1, 0], [0, 1, 0], 100.0, [2.25, 2.5, 5.0], [0.25, -3.0, -1.0], id="both"),
    # delta_2 = 1 - 6 = -5: v_1 = 4 + 0.25 * -5, v_0 = 3 + 0.5 * -1.25.
    pytest.param([0, 0, 1], [0, 0, 0], None, [2.375, 2.75, 1.0], [0.375, -2.5, -5.0], id="terminated last"),
    pytest.param([0, 0, 0], [0, 0, 1], None, [2.875, 3.75, 5.0], [0.875, -0.5, -1.0], id="truncated last"),
]


@pytest.mark.parametrize(("terminated", "truncated", "final", "targets", "advantages"), HANDMADE)
def test_episodes_worked_out_by_hand(
    terminated: list[int], truncated: list[int], final: float | None, targets: list[float], advantages: list[float]
):
    """Each kind of end: termination bootstraps nothing, truncation its final observation, neither leaks."""
    after = np.full((3, 1), 8.0)
    after[1] = 0.0 if final is None else final
    round_ = {
        "rewards": np.ones((3, 1)),
        "values": np.array([[2.0], [4.0], [6.0]]),
        "terminated": np.array([terminated], dtype=np.uint8).T,
        "truncated": np.array([truncated], dtype=np.uint8).T,
        "after": after,
        "log_ratios": np.log([[2.0], [0.5], [1.0]]),
    }
    found = computed(round_, 0.5, 1.0, 1.0, 1.0)
    assert found.targets[:, 0].tolist() == pytest.approx(targets, rel=1e-12)
    assert found.advantages[:, 0].tolist() == pytest.approx(advantages, rel=1e-12)


def test_an_action_that_the_policy_would_never_take_teaches_nothing():
    """Ratio 0 cuts the trace: no later reward reaches rows before it, and its own row keeps its value."""
    round_ = {**random_round(6, 2, seed=6), "log_ratios": np.zeros((6, 2))}
    for name in ("terminated", "truncated"):
        round_[name][:] = 0
    round_["log_ratios"][3] = -np.inf
    first = computed(round_, 0.99)
    assert torch.equal(first.targets[3], torch.from_numpy(round_["values"][3]))
    round_["rewards"][3:] += 100.0
    second = computed(round_, 0.99)
    assert torch.equal(first.targets[:4], second.targets[:4])
    assert not torch.equal(first.targets[4:], second.targets[4:])


def test_the_inputs_stay_as_they_are():
    """Targets and advantages are made in new tensors."""
    round_ = off_policy_round(5, 3, seed=5)
    before = {name: array.copy() for name, array in round_.items()}
    computed(round_, 0.9)
    assert all(np.array_equal(round_[name], array) for name, array in before.items())
