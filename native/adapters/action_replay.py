"""Saves the state of environments that cannot report it, as their seeds and actions since, which `restore` replays.

It grows with every step, and resuming takes as long as the steps took. So it is for bounded periods of acting, after
which the caller seeds again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from penstock.native.interface import EnvironmentPool, StateNotSupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SEED, ACTION, SHOWN = "repeated.seed", "repeated.action", "repeated.shown"
_SHOWN_BYTES = 16
_ROUND_STEPS = 32
"""Steps per replayed round, which bounds the memory of their observations."""


class ActionRecord:
    """The seeds of environments and every action since."""

    def __init__(self, seeds: NDArray[np.uint64]) -> None:
        self._seeds = seeds.copy()
        self._actions: NDArray[np.generic] | None = None
        """[steps that there is room for, num_envs, ...]."""
        self._steps = 0

    def add(self, action: NDArray[np.generic]) -> None:
        """Append a copy of one step's actions, `[num_envs, ...]`."""
        if self._actions is None or self._steps == len(self._actions):
            more = np.empty((max(self._steps, _ROUND_STEPS), *action.shape), dtype=action.dtype)
            self._actions = more if self._actions is None else np.concatenate([self._actions, more])
        self._actions[self._steps] = action
        self._steps += 1

    def state(self, observation: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
        """Return uint64 seeds `[num_envs]`, actions `[num_envs, T, ...]`, digests uint8 `[num_envs, 16]`."""
        state: dict[str, NDArray[np.generic]] = {SEED: self._seeds.copy(), SHOWN: _digests(observation)}
        if self._actions is not None:
            state[ACTION] = np.swapaxes(self._actions[: self._steps], 0, 1).copy()
        return state


def repeat(pool: EnvironmentPool, name: str, state: Mapping[str, NDArray[np.generic]]) -> None:
    """Seed a pool's environments and replay all actions of a saved state.

    Raises:
        StateNotSupportedError: it is not such a state, or the observations differ after the same actions.
    """
    if SEED not in state or SHOWN not in state:
        raise StateNotSupportedError(
            f"the state of {name} cannot be restored from {', '.join(sorted(state)) or 'nothing'}: expected "
            f"{SEED}, {SHOWN} and {ACTION}, as a pool of the same environment saves them"
        )
    _check_form(pool.num_envs, name, state)
    seeds = np.asarray(state[SEED], dtype=np.uint64)
    pool.reset_ids(seeds)
    actions = np.swapaxes(state[ACTION], 0, 1) if ACTION in state else np.empty((0, pool.num_envs))
    try:
        for start in range(0, len(actions), _ROUND_STEPS):
            _repeat_round(pool, actions[start : start + _ROUND_STEPS])
    except ValueError as error:
        pool.reset_ids(seeds)  # gives the open round up
        raise StateNotSupportedError(
            f"the state of {name} has actions that its environments do not take: {error}"
        ) from error
    differing = np.flatnonzero((_digests(pool.observation) != state[SHOWN]).any(1))
    if len(differing):
        raise StateNotSupportedError(
            f"{name}: environment {differing[0]} differs after the same {len(actions)} actions from the "
            f"same seed, expected the same bytes: it depends on more than these (a clock, a generator of its own that "
            f"reset(seed=...) does not set), so no pool can resume from this state"
        )


def _check_form(num_envs: int, name: str, state: Mapping[str, NDArray[np.generic]]) -> None:
    arrays = {key: np.asarray(array) for key, array in state.items()}
    seeds, shown, actions = arrays[SEED], arrays[SHOWN], arrays.get(ACTION, np.empty((num_envs, 0)))
    expected = (np.dtype(np.uint64), (num_envs,)), (np.dtype(np.uint8), (num_envs, _SHOWN_BYTES))
    found = tuple((array.dtype, array.shape) for array in (seeds, shown))
    # An action's own shape and type are for the pool to check.
    if found != expected or actions.shape[:1] != (num_envs,) or actions.ndim < 2:
        raise StateNotSupportedError(
            f"the state of {name} has {SEED} {seeds.dtype} {list(seeds.shape)}, {SHOWN} {shown.dtype} "
            f"{list(shown.shape)} and {ACTION} {list(actions.shape)}, expected uint64 [{num_envs}], uint8 [{num_envs}, "
            f"{_SHOWN_BYTES}] and [{num_envs}, steps, ...]; is it of a pool with another number of environments?"
        )


def _repeat_round(pool: EnvironmentPool, actions: NDArray[np.generic]) -> None:
    shape, observation = (len(actions), pool.num_envs), pool.environment["observation"]
    agents = pool.environment["agents"]
    pool.begin_round(
        np.empty((*shape, *observation["shape"]), dtype=observation["dtype"]),
        np.empty((*shape, agents) if agents else shape, dtype=np.float32),
        np.empty(shape, dtype=np.uint8),
        np.empty(shape, dtype=np.uint8),
        np.empty(shape, dtype=np.int32),
    )
    for t, action in enumerate(actions):
        pool.step_round(t, np.ascontiguousarray(action))
    pool.end_round()


def _digests(observation: NDArray[np.generic]) -> NDArray[np.uint8]:
    shown = [blake3(np.ascontiguousarray(row).tobytes()).digest(length=_SHOWN_BYTES) for row in observation]
    return np.frombuffer(b"".join(shown), dtype=np.uint8).reshape(len(shown), _SHOWN_BYTES)
