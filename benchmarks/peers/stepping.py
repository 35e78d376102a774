"""The stepping loop of all contenders in `benchmarks.pool`: same loop, same actions, resets not counted.

A contender is a function that steps its environments once with given actions and returns the terminated and truncated
flags. It steps as fast as it can for a given time, with actions drawn beforehand. A second pass without timing counts
the steps that were automatic resets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

ACTION_BATCHES = 256
COUNTED_STEPS, LEAST_STEPS = 2000, 200

Step = "Callable[[Any], tuple[Any, Any]]"


def random_actions(space: str, num_envs: int, dtype: str) -> list[NDArray[Any]]:
    """Return batches of actions for `discrete:N`, or `box:WIDTH:BOUND` (shape [num_envs, WIDTH])."""
    generator = np.random.default_rng(0)
    kind, *numbers = space.split(":")
    if kind == "discrete":
        count = int(numbers[0])
        return [generator.integers(0, count, num_envs).astype(dtype) for _ in range(ACTION_BATCHES)]
    width, bound = int(numbers[0]), float(numbers[1])
    return [generator.uniform(-bound, bound, (num_envs, width)).astype(dtype) for _ in range(ACTION_BATCHES)]


def steps_per_second(step: Callable[[Any], Any], actions: Sequence[Any], num_envs: int, seconds: float) -> float:
    """Return the environment steps per second, resets included."""
    count, burst = len(actions), max(1, min(256, 65_536 // num_envs))
    steps = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(burst):
            step(actions[steps % count])
            steps += 1
    return steps * num_envs / elapsed


def reset_share(step: Callable[[Any], tuple[Any, Any]], actions: Sequence[Any], num_envs: int, seconds: float) -> float:
    """Return the share of steps that were resets, for contenders that reset in the step after an episode's end.

    Slow ones count for `seconds`, but 200 steps at least.
    """
    ended, most = 0, min(COUNTED_STEPS, max(LEAST_STEPS, 2_000_000 // num_envs))
    started = time.perf_counter()
    for index in range(most):
        terminated, truncated = step(actions[index % len(actions)])
        ended += int(np.count_nonzero(np.asarray(terminated) | np.asarray(truncated)))
        if index + 1 >= LEAST_STEPS and time.perf_counter() - started > seconds:
            break
    return ended / ((index + 1) * num_envs)


def measure(
    step: Callable[[Any], tuple[Any, Any]],
    actions: Sequence[Any],
    num_envs: int,
    seconds: float,
    *,
    resets_take_a_step: bool,
) -> float:
    """Return the environment steps per second, without resets."""
    for index in range(32):
        step(actions[index])
    rate = steps_per_second(step, actions, num_envs, seconds)
    return rate * (1.0 - reset_share(step, actions, num_envs, seconds)) if resets_take_a_step else rate
