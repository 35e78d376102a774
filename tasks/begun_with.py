"""Which version an episode began with, of a tile that may leave rounds out: its length alone does not tell then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FIRST_VERSION = "first_policy_version"
"""Its name in a tile's state."""
_NEXT = -1


class BegunWith:
    """Of a tile's environments, the versions with which the episodes that are under way began.

    Attributes:
        versions: int64 `[B]`; -1 of an episode that begins with the next round. Never written in place.
    """

    def __init__(self, envs: int) -> None:
        self.versions: NDArray[np.int64] = np.full(envs, _NEXT, dtype=np.int64)

    def end_round(self, version: int, ended: Mapping[str, NDArray[Any]], steps: int) -> NDArray[np.int64]:
        """Count a round that a version has acted.

        Args:
            version: that acted.
            ended: `row` and `env` of the episodes that ended in it, in order of rows (`native.RoundEnd.episodes`).
            steps: of an environment in the round.

        Returns:
            int64, an entry an episode: the version with which it began.
        """
        envs = len(self.versions)
        versions = np.where(self.versions == _NEXT, version, self.versions)
        first = np.empty(len(ended["row"]), dtype=np.int64)
        for index, (row, env) in enumerate(zip(ended["row"].tolist(), ended["env"].tolist(), strict=True)):
            first[index] = versions[env]
            versions[env] = version if row // envs + 1 < steps else _NEXT
        self.versions = versions
        return first
