"""Shared parts of readers of stored runs: stages, claims, names, and the column that no file has. Imports little."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import ConfigError
from penstock.storage.runs.reader_claims import reading, shards_kept_from
from penstock.storage.runs.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.refs import ShardRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.stores.protocol import Store

NEXT_OBSERVATION = "next_observation"
"""A column that no file has: the observation after the row, or an episode's last one at its end."""


def stored_name(column: str) -> str:
    """Return the stored column from which a requested one is derived."""
    return "observation" if column == NEXT_OBSERVATION else column


def shardless_message(run: RunFolder) -> str:
    """Return what to say of a run of which no committed stage has shards."""
    read = run.load("config")["config"].get("source", {}).get("runs", [])
    if read:
        return f"run '{run.name}' is a replay, which stores no shards; name the runs that it read: {', '.join(read)}"
    return f"run '{run.name}' has committed stages without shards"


def require_committed(run: RunFolder) -> Commit:
    """Return a run's newest commit.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: it has none yet.
    """
    run.load()
    newest = run.log.newest()
    if newest is None:
        raise ConfigError(f"run '{run.name}' has committed nothing yet; export it after the first stage")
    return newest


def exported_stages(run: RunFolder, first: int) -> range:
    """Return the stages whose shards an export reads, after a few small reads.

    Args:
        run: with committed shards.
        first: the first stage.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: a stage is not committed, or its shards were dropped; or the run is a replay, which has none.
    """
    newest = require_committed(run)
    if not 0 <= first <= newest.stage:
        raise ConfigError(f"from stage {first}: run '{run.name}' has committed stages 0 to {newest.stage}")
    if run.plan() is not None:
        raise ConfigError(shardless_message(run))
    if (kept := shards_kept_from(run.store)) > first:
        left = "none is left" if kept > newest.stage else f"--from-stage {kept} exports the others"
        raise ConfigError(
            f"run '{run.name}' has no shards before stage {kept}, as `penstock gc --drop-shards-before` has dropped "
            f"them; {left}"
        )
    return range(first, newest.stage + 1)


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """Return a setting as an int, so that states that hold it are JSON: NumPy's numbers are not, and 1e6 is a float.

    Raises:
        ConfigError: it is no whole number of `least` or more.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = least - 1
    if number < least or number != value:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of {least} or more")
    return number


def require_exponent(name: str, value: Any) -> float:
    """Return an exponent of prioritised replay; ConfigError if it is no finite number of 0 or more."""
    try:
        number = -1.0 if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < math.inf:
        raise ConfigError(f"{name} is {value!r}, expected a number of 0 or more")
    return number


def requested_stages(stages: range | None) -> range:
    """Return the requested stages; None: all, including later ones.

    Raises:
        ConfigError: they are no range, not consecutive, or negative.
    """
    if stages is not None and (not isinstance(stages, range) or stages.step != 1 or stages.start < 0):
        raise ConfigError(f"stages is {stages!r}, expected a range of consecutive stages, such as range(10, 20)")
    return range(1 << 62) if stages is None else stages


def requested_runs(runs: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the requested runs; ConfigError if there is none, or one is named twice."""
    names = (runs,) if isinstance(runs, str) else tuple(runs) if isinstance(runs, Iterable) else ()
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"runs is {runs!r}, expected the names of one or several different runs")
    return names


def require_state(state: object, expected_format: str) -> None:
    """Raise ConfigError if a state that resumes a reader is no table, or has another format."""
    if not isinstance(state, Mapping):
        raise ConfigError(f"the state is {state!r}, expected what state_dict() returned")
    if state.get("format") != expected_format:
        raise ConfigError(f"the state's format is {state.get('format')!r}, expected '{expected_format}'")


def requested_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of the requested columns, None for all; ConfigError if there is none, or no sequence."""
    is_named = columns is None or (
        columns and not isinstance(columns, str) and all(isinstance(one, str) for one in columns)
    )
    if not is_named:
        raise ConfigError(
            f"columns is {columns!r}, expected names of columns, such as ['reward'], or None for all of them"
        )
    return None if columns is None else tuple(columns)


def newest_stages(store: Store, runs: Sequence[str]) -> dict[str, int]:
    """Return the newest committed stage by run, -1 before the first.

    Raises:
        RunNotFoundError: there is no run of that name.
    """
    found = {}
    for name in runs:
        run = RunFolder(store, name)
        run.load()
        newest = run.log.newest()
        found[name] = newest.stage if newest else -1
    return found


def from_root(run: str, ref: ShardRef) -> ShardRef:
    """Return the reference of a run's shard for the store that holds the runs."""
    return replace(ref, name=f"{run}/{ref.name}")


class StageClaims:
    """Claims on stages of several runs, which a reader moves as it needs other stages.

    Args:
        store: holds the runs.
        purpose: one word, part of the readers' names.
    """

    def __init__(self, store: Store, purpose: str) -> None:
        self._store = store
        self._purpose = purpose
        self._claims: dict[str, tuple[int, ExitStack]] = {}

    def move(self, needed: Mapping[str, tuple[int, int]]) -> None:
        """Claim these stages, first and last by run, and only then release the previous claims.

        Raises:
            ConfigError: the shards of one of these stages were deleted.
        """
        for run, (first, last) in needed.items():
            before = self._claims.get(run)
            # A claim on the first stage keeps all later ones, too: stages added at the end need no new claim.
            if before is None or before[0] != first:
                claim = ExitStack()
                claim.enter_context(reading(self._store.at(run), self._purpose, first, last, optional=True))
                self._claims[run] = first, claim
                if before is not None:
                    before[1].close()
        for run in self._claims.keys() - needed.keys():
            self._claims.pop(run)[1].close()
