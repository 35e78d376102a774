"""What readers of stored runs share: stages, claims, names, the column that no file has."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from storage.errors import ConfigError
from storage.readers import reading
from storage.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from storage.refs import ShardRef
    from storage.store import Store

NEXT_OBSERVATION = "next_observation"
"""A column that no file has: what was observed after the row, at an episode's end its last observation."""


def stored_name(column: str) -> str:
    """The column of the file that a wanted one is made of."""
    return "observation" if column == NEXT_OBSERVATION else column


def stages_wanted(stages: range | None) -> range:
    """The stages that a reader was asked for; None: all, those to come included.

    Raises:
        ConfigError: they are not consecutive.
    """
    if stages is not None and stages.step != 1:
        raise ConfigError(f"stages is {stages!r}, expected a range of consecutive stages, such as range(10, 20)")
    return range(1 << 62) if stages is None else stages


def newest_stages(store: Store, runs: Sequence[str]) -> dict[str, int]:
    """The newest committed stage by run, -1 before the first.

    Raises:
        RunNotFoundError: there is no run of that name.
    """
    found = {}
    for name in runs:
        run = RunFolder(store, name)
        run.load()
        newest = run.log.newest()
        found[name] = int(newest["stage"]) if newest else -1
    return found


def from_root(run: str, ref: ShardRef) -> ShardRef:
    """The reference of a run's shard for the store that holds the runs."""
    return replace(ref, name=f"{run}/{ref.name}")


class StageClaims:
    """Claims on stages of several runs, which move with what a reader needs.

    Args:
        store: that holds the runs.
        purpose: what for, in a word, part of the readers' names.
    """

    def __init__(self, store: Store, purpose: str) -> None:
        self._store = store
        self._purpose = purpose
        self._claims: dict[str, tuple[int, ExitStack]] = {}

    def move(self, needed: Mapping[str, tuple[int, int]]) -> None:
        """Claim these stages, first and last by run, and only then let go of what was claimed before.

        Raises:
            ConfigError: the shards of one of these stages were dropped.
        """
        for run, (first, last) in needed.items():
            before = self._claims.get(run)
            # No later stage can be dropped while the first can't be: what is added at the end needs no other claim.
            if before is None or before[0] != first:
                claim = ExitStack()
                claim.enter_context(reading(self._store.at(run), self._purpose, first, last, optional=True))
                self._claims[run] = first, claim
                if before is not None:
                    before[1].close()
        for run in self._claims.keys() - needed.keys():
            self._claims.pop(run)[1].close()
