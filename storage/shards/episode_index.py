"""Indexes the episodes that ended in a shard, with their rows, lengths, returns and kinds of end."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import orjson

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENDS = ("terminated", "truncated", "both")


@dataclass(frozen=True, slots=True)
class Episodes:
    """Each episode that ended in a shard has one entry in these arrays, in row order."""

    row: NDArray[np.int64]
    """Row `t * B + b` of the last step; the episode's earlier rows are B apart before it, back into earlier shards."""
    env_id: NDArray[np.int64]
    episode_id: NDArray[np.int64]
    """The number of the episode among its environment's."""
    length: NDArray[np.int64]
    """Steps of the whole episode."""
    return_: NDArray[np.float64]
    """Undiscounted sum of the whole episode's rewards."""
    end: NDArray[np.int64]
    """Index into `ENDS`."""
    first_policy_version: NDArray[np.int64]
    """The version that acted its first step, maybe in an earlier shard."""
    last_policy_version: NDArray[np.int64]
    """The version that acted its last step."""

    @classmethod
    def from_flags(
        cls,
        row: NDArray[np.int64],
        env_id: NDArray[np.int64],
        episode_id: NDArray[np.int64],
        length: NDArray[np.int64],
        return_: NDArray[np.float64],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        first_policy_version: NDArray[np.int64],
        last_policy_version: NDArray[np.int64],
    ) -> Episodes:
        """Encode the ends from the flags of the last steps, at least one of which is set."""
        end = terminated.astype(np.int64) + 2 * truncated.astype(np.int64) - 1
        return cls(row, env_id, episode_id, length, return_, end, first_policy_version, last_policy_version)

    def __len__(self) -> int:
        return len(self.row)

    def steps(self, index: int, envs: int) -> range:
        """Return the steps of an episode that are in the shard: it may have begun in an earlier one."""
        last = int(self.row[index]) // envs
        return range(max(0, last + 1 - int(self.length[index])), last + 1)

    def to_json(self) -> bytes:
        """Encode columns as lists, with the kind of end by name, sorted keys and no spaces.

        Raises:
            ValueError: a return is not finite, which JSON can't express.
        """
        if not np.isfinite(self.return_).all():
            bad = int(np.flatnonzero(~np.isfinite(self.return_))[0])
            raise ValueError(
                f"episode {self.episode_id[bad]} of environment {self.env_id[bad]} has return {self.return_[bad]}, "
                f"expected a finite number; check the environment's rewards"
            )
        # An untrained policy ends hundreds of episodes a round, while the actor waits for the GIL.
        columns = {
            "row": self.row,
            "env_id": self.env_id,
            "episode_id": self.episode_id,
            "length": self.length,
            "return": self.return_,
            "end": [ENDS[end] for end in self.end.tolist()],
            "first_policy_version": self.first_policy_version,
            "last_policy_version": self.last_policy_version,
        }
        return orjson.dumps(columns, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, text: bytes) -> Episodes:
        """Parse the result of `to_json`; ValueError or KeyError for anything else."""
        values = orjson.loads(text)
        found = cls(
            row=np.array(values["row"], dtype=np.int64),
            env_id=np.array(values["env_id"], dtype=np.int64),
            episode_id=np.array(values["episode_id"], dtype=np.int64),
            length=np.array(values["length"], dtype=np.int64),
            return_=np.array(values["return"], dtype=np.float64),
            end=np.array([ENDS.index(end) for end in values["end"]], dtype=np.int64),
            first_policy_version=np.array(values["first_policy_version"], dtype=np.int64),
            last_policy_version=np.array(values["last_policy_version"], dtype=np.int64),
        )
        shapes = {getattr(found, field.name).shape for field in fields(cls)}
        if shapes != {(len(values["end"]),)}:
            raise ValueError(f"its episode index has columns of the shapes {shapes}, expected lists of one length")
        if not np.isfinite(found.return_).all():
            raise ValueError("its episode index has returns that are not finite")
        return found
