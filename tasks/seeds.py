"""Seeds: every random stream is keyed by its purpose and its environment or round, never by the computing process."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Purpose(IntEnum):
    """The purpose of a stream. The numbers are part of a run's identity: never change or reuse one."""

    PARAMETERS = 0
    ENVIRONMENT = 1
    ACTION = 2
    PLAN = 3
    EVALUATION = 4
    REPLAY = 5
    LOSS = 6
    RESTART = 7
    INFERENCE = 8
    SWEEP = 9
    OPPONENT = 10
    OPPONENT_ACTION = 11
    OPENING = 12


def seed_of(run_seed: int, purpose: Purpose, *ids: int) -> int:
    """Return a 64-bit seed for one stream, by NumPy's SeedSequence over (run seed, purpose, ids)."""
    return int(np.random.SeedSequence([run_seed, int(purpose), *ids]).generate_state(1, np.uint64)[0])


def environment_seeds(run_seed: int, purpose: Purpose, *ids: int, env_ids: range) -> NDArray[np.uint64]:
    """Return one seed per environment, uint64 `[B]`."""
    return np.array([seed_of(run_seed, purpose, *ids, env_id) for env_id in env_ids], dtype=np.uint64)
