"""Small environments, states and rows that tests of PPO share."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, LossInputs, Spec, State, Trajectory

CHOICES = EnvironmentSpec("choices", Spec("float32", (3,)), ActionSpec("discrete", n=2), None, None)
VECTORS = EnvironmentSpec(
    "vectors",
    Spec("float32", (3,)),
    ActionSpec("box", shape=(2,), low=(-2.0, -2.0), high=(2.0, 2.0)),
    None,
    None,
)
ENVIRONMENTS = [pytest.param(CHOICES, id="discrete"), pytest.param(VECTORS, id="continuous")]
PLAIN = {"count": 1.0, "advantage": 0.0, "advantage_square": 1.0}
"""Sums of advantages with mean 0 and variance 1, by which normalising changes nothing."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_settings(algorithm: Any, **changes: Any) -> Any:
    """Return an algorithm with some of its settings changed."""
    return replace(algorithm, settings=algorithm.settings.model_copy(update=changes))


def biased(ppo: PPO, **biases: Iterable[float]) -> State:
    """A state whose last policy or value layer gives these numbers, whatever is observed (all weights are zero)."""
    state = ppo.init(1)
    with torch.no_grad():
        for group, bias in biases.items():
            params = state.params[group]
            params.flat.zero_()
            last = max(name for name in params if name.endswith(".bias"))
            params[last].copy_(torch.tensor(list(bias)))
    return state


def trajectory(**changes: Tensor) -> Trajectory:
    """Three steps of two environments that observe `(value, 0, 0)`; nothing ends but the round."""
    columns = {
        "observation": torch.zeros(3, 2, 3),
        "reward": torch.ones(3, 2),
        "terminated": torch.zeros(3, 2, dtype=torch.uint8),
        "truncated": torch.zeros(3, 2, dtype=torch.uint8),
        "action": torch.zeros(3, 2, dtype=torch.int64),
        "log_probability": torch.arange(6.0).view(3, 2),
    }
    columns["observation"][..., 0] = torch.tensor([[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]])
    following = torch.zeros(2, 3)
    following[:, 0] = 8.0
    rest = {"bootstrap_rows": torch.tensor([4, 5]), "bootstrap_observation": following}
    rest |= {name: changes.pop(name) for name in rest if name in changes}
    return Trajectory(columns | changes, **rest)


def first_number(ppo: PPO) -> State:
    """A state whose value of an observation is its first number."""
    state = biased(ppo, value=[0.0])
    with torch.no_grad():
        state.params["value"]["0.weight"][0, 0] = 1.0
    return state


def rows_of(ppo: PPO, state: State, count: int, seed: int = 3) -> dict[str, Tensor]:
    """Rows as acting gives them, with random advantages and targets."""
    observation = random(count, 3, seed=seed)
    acted, _ = ppo.act(state.params, None, observation, random(count, *ppo.noise.shape, seed=seed + 1))
    targets = {"advantage": random(count, seed=seed + 2), "value_target": random(count, seed=seed + 3)}
    return {"observation": observation, **{name: value.detach() for name, value in acted.items()}, **targets}


def loss_of(
    ppo: PPO, name: str, params: Mapping[str, Mapping[str, Tensor]], rows: dict[str, Tensor], **changes: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    loss = next(loss for loss in ppo.losses if loss.name == name)
    stats = {name: float(value) for name, value in changes.get("stats", PLAIN).items()}
    return loss.function(params, LossInputs(rows, changes.get("count", len(rows["observation"])), stats))
