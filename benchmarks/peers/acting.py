"""A small policy in eager torch, and the timing of acting with it, for the scripts that measure acting alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

SAMPLERS = ("exponential", "categorical")


class Policy:
    """A 2 x 64 tanh network over CartPole's observation, with sampling and the action's log-probability.

    Two ways to sample, both exact: `exponential` (log_softmax, an exponential race, argmax, gather) is the fastest that
    eager torch allows, `categorical` is `torch.distributions.Categorical` without argument validation, as most
    training code has it.
    """

    def __init__(self, seed: int, sampler: str) -> None:
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(4, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 2)]
        self._parameters = [tensor.detach() for layer in layers for tensor in (layer.weight, layer.bias)]
        self._sample = {"exponential": _exponential_race, "categorical": _categorical}[sampler]

    def act(self, observation: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int64 actions [N] and their log-probabilities [N] for float32 observations [N, 4]."""
        weight_1, bias_1, weight_2, bias_2, weight_3, bias_3 = self._parameters
        hidden = functional.linear(torch.from_numpy(observation), weight_1, bias_1).tanh_()
        hidden = functional.linear(hidden, weight_2, bias_2).tanh_()
        return self._sample(functional.linear(hidden, weight_3, bias_3))


def _exponential_race(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_probabilities = functional.log_softmax(logits, -1)
    race = torch.empty_like(logits).exponential_()
    action = log_probabilities.exp().div_(race).argmax(1, keepdim=True)
    return action.squeeze(1), log_probabilities.gather(1, action).squeeze(1)


def _categorical(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    distribution = torch.distributions.Categorical(logits=logits, validate_args=False)
    action = distribution.sample()
    return action, distribution.log_prob(action)


def best_steps_per_second(advance: Callable[[], int], window_seconds: float, windows: int) -> float:
    """Call `advance`, which returns how many environment steps it made, and return the best window's steps per second.

    A tenth of a window is run before, untimed.
    """
    _timed(advance, window_seconds / 10)
    return max(_timed(advance, window_seconds) for _ in range(windows))


def _timed(advance: Callable[[], int], seconds: float) -> float:
    steps = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(8):
            steps += advance()
    return steps / elapsed
