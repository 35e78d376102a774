"""Where randomness comes from: every stream is keyed by what it is for and whom it serves, never by who computes it."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Purpose(IntEnum):
    """What a stream is for. The numbers are part of a run's identity: never change or reuse one."""

    PARAMETERS = 0
    ENVIRONMENT = 1
    ACTION = 2
    PLAN = 3
    EVALUATION = 4
    REPLAY = 5
    LOSS = 6
    RESTART = 7


def seed_of(run_seed: int, purpose: Purpose, *ids: int) -> int:
    """A 64-bit seed for one stream, by NumPy's SeedSequence over (run seed, purpose, ids)."""
    return int(np.random.SeedSequence([run_seed, int(purpose), *ids]).generate_state(1, np.uint64)[0])


def environment_seeds(run_seed: int, purpose: Purpose, *ids: int, env_ids: range) -> NDArray[np.uint64]:
    """One seed an environment, uint64 `[B]`."""
    return np.array([seed_of(run_seed, purpose, *ids, env_id) for env_id in env_ids], dtype=np.uint64)
