"""Advantages against a plain recursion over every environment alone, with episodes that end in every way."""

from typing import Any

import numpy as np
import pytest
import torch

from penstock.tasks.model.nn.returns import generalized_advantages, successor_values, transitions


def random_round(steps: int, envs: int, seed: int) -> dict[str, Any]:
    """Rewards, values and ends at random; float64, so that only the order of operations could differ."""
    generator = np.random.default_rng(seed)
    ends = generator.integers(0, 6, (steps, envs))
    return {
        "rewards": generator.normal(size=(steps, envs)),
        "values": generator.normal(size=(steps, envs)),
        "terminated": ((ends == 1) | (ends == 3)).astype(np.uint8),
        "truncated": ((ends == 2) | (ends == 3)).astype(np.uint8),
        "after": generator.normal(size=(steps, envs)),
    }


def by_recursion(round_: dict[str, Any], env: int, discount: float, trace_decay: float) -> list[float]:
    """One environment, in plain Python: `after` is the value of what followed where no row follows."""
    steps = len(round_["rewards"])

    def advantage(step: int) -> float:
        terminated, truncated = bool(round_["terminated"][step, env]), bool(round_["truncated"][step, env])
        is_last = step == steps - 1
        following = (
            round_["after"][step, env] if terminated or truncated or is_last else round_["values"][step + 1, env]
        )
        target = round_["rewards"][step, env] + (0.0 if terminated else discount * following)
        delta = target - round_["values"][step, env]
        goes_on = not (terminated or truncated or is_last)
        return float(delta + (discount * trace_decay * advantage(step + 1) if goes_on else 0.0))

    return [advantage(step) for step in range(steps)]


def computed(round_: dict[str, Any], discount: float, trace_decay: float) -> torch.Tensor:
    tensors = {name: torch.from_numpy(array) for name, array in round_.items()}
    open_ended = (tensors["terminated"] | tensors["truncated"]).bool()
    open_ended[-1] = True
    rows = open_ended.flatten().nonzero().squeeze(-1)
    successors = successor_values(tensors["values"], rows, tensors["after"].flatten()[rows])
    return generalized_advantages(
        tensors["rewards"],
        tensors["values"],
        successors,
        tensors["terminated"],
        tensors["truncated"],
        discount,
        trace_decay,
    )


@pytest.mark.parametrize(("discount", "trace_decay"), [(0.98, 0.9), (1.0, 1.0), (0.9, 0.0), (0.0, 0.9)])
def test_advantages_equal_the_plain_recursion(discount: float, trace_decay: float):
    """For terminated, truncated, both, and the round's end, wherever they fall."""
    round_ = random_round(17, 8, seed=3)
    ends = set(zip(round_["terminated"].flat, round_["truncated"].flat, strict=True))
    assert ends == {(0, 0), (0, 1), (1, 0), (1, 1)}
    found = computed(round_, discount, trace_decay)
    expected = np.array([by_recursion(round_, env, discount, trace_decay) for env in range(8)]).T
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_a_single_step_is_its_own_end():
    """A round of one step has deltas alone."""
    round_ = random_round(1, 5, seed=4)
    expected = np.array([by_recursion(round_, env, 0.9, 0.9) for env in range(5)]).T
    np.testing.assert_allclose(computed(round_, 0.9, 0.9).numpy(), expected, rtol=1e-12)


def test_successors_are_the_next_rows_and_the_final_observations():
    """Row t of environment b is followed by row t + 1, but where a final observation is given."""
    values = torch.arange(6.0).view(3, 2)
    following = successor_values(values, torch.tensor([1, 4, 5]), torch.tensor([10.0, 11.0, 12.0]))
    assert following.tolist() == [[2.0, 10.0], [4.0, 5.0], [11.0, 12.0]]
    assert torch.equal(values, torch.arange(6.0).view(3, 2))


def test_the_inputs_stay_as_they_are():
    """Advantages are made in place in a new tensor."""
    round_ = random_round(5, 3, seed=5)
    before = {name: array.copy() for name, array in round_.items()}
    computed(round_, 0.9, 0.9)
    assert all(np.array_equal(round_[name], array) for name, array in before.items())


def test_no_end_leaks_into_the_next_episode():
    """Rows after an episode's end change nothing before it."""
    round_ = random_round(6, 2, seed=6)
    for name in ("terminated", "truncated"):
        round_[name][:] = 0
    round_["terminated"][2, 0] = 1
    round_["truncated"][2, 1] = 1
    first = computed(round_, 0.99, 0.95)
    round_["rewards"][3:] += 100.0
    round_["values"][3:] -= 50.0
    second = computed(round_, 0.99, 0.95)
    assert torch.equal(first[:3], second[:3])
    assert not torch.equal(first[3:], second[3:])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int64", "float32"])
def test_observations_of_any_type_follow_their_rows(dtype: str):
    """The last rows have what followed the round, bit for bit; torch can't index wide unsigned numbers by itself."""
    most = np.finfo(dtype).max if dtype == "float32" else np.iinfo(dtype).max
    observation = np.array([[[1]], [[2]], [[most]]], dtype=dtype)
    end = torch.from_numpy(np.array([[7]], dtype=dtype))
    zeros = torch.zeros(3, 1)
    for steps, expected in ((1, [2, most, 7]), (2, [most, 7, 7])):
        found = transitions(zeros, torch.from_numpy(observation), torch.tensor([2]), end, zeros, 0.9, steps)
        assert found.following.numpy().ravel().tolist() == np.array(expected, dtype=dtype).tolist()
