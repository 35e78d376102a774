"""A run's folder as a whole: what it is (`run.json`), how far it is (its log), and which runs there are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.commits import CommitLog
from storage.digest import canonical_json, digest
from storage.errors import (
    ConfigError,
    CorruptObjectError,
    ObjectExistsError,
    ObjectNotFoundError,
    RunExistsError,
    RunNotFoundError,
)

if TYPE_CHECKING:
    from storage.store import Store

RUN = "run.json"
_INDEX = ".runs/"
"""Where remote stores, which have no folders to look through, keep an empty object for each run."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_EVALUATION_LOOKBACK_COMMITS = 32


class RunFolder:
    """One run in a store, whether it exists yet or not. Cheap to make and to pickle.

    Args:
        root: that holds the runs.
        name: of the run.

    Raises:
        ConfigError: the name is no run's name.
    """

    def __init__(self, root: Store, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' can't name a run: expected 1 to 64 of a-z, 0-9, '.', '_', '-', of which the first is a "
                f"letter or a digit"
            )
        self.root = root
        """The store that holds the runs."""
        self.name = name
        self.store = root.at(name)
        self.log = CommitLog(self.store)

    def __repr__(self) -> str:
        return f"RunFolder({self.store.url!r})"

    def exists(self) -> bool:
        """Whether the run was created."""
        return self.store.exists(RUN)

    def create(self, run_json: dict[str, Any]) -> None:
        """Write what the run is, once and for good; durable.

        Raises:
            RunExistsError: it was created before, by whomever.
            ValueError: this can't be said in JSON.
        """
        data = canonical_json(run_json) + b"\n"
        try:
            self.store.create(RUN, data)
        except ObjectExistsError as error:
            raise RunExistsError(
                f"there is a run '{self.name}' in {self.root.url} already; choose another name, or resume it with "
                f"`penstock resume {self.name}`"
            ) from error
        if self.store.path(RUN) is None:
            self.root.write(f"{_INDEX}{self.name}", [b""])

    def load(self, *needed: str) -> dict[str, Any]:
        """What the run is.

        Args:
            needed: names that have to be there.

        Raises:
            RunNotFoundError: it was not created.
            CorruptObjectError: `run.json` was altered or cut short, or has a name of those needed no more.
        """
        data = self._read()
        try:
            loaded = json.loads(data)
            intact = isinstance(loaded, dict) and canonical_json(loaded) + b"\n" == data
        except (ValueError, RecursionError):
            intact = False
        if not intact:
            raise CorruptObjectError(
                f"'{RUN}' in {self.store.url} is not what was written there: {len(data)} bytes that are no canonical "
                f"JSON object. Restore it from a copy; without it the run can't be resumed"
            )
        missing = [name for name in needed if name not in loaded]
        if missing:
            raise CorruptObjectError(
                f"'{RUN}' in {self.store.url} is not what was written there: found {', '.join(sorted(loaded))}, "
                f"expected {', '.join(missing)} as well. Restore it from a copy; without it the run can't be resumed"
            )
        return dict(loaded)

    def genesis(self) -> str:
        """Parent of the first commit: the digest of what determines the run's bytes, `identity` in `run.json`.

        Runs that differ in name, place or time alone have the same one, and so the same commits.

        Raises:
            RunNotFoundError: the run was not created.
        """
        return digest(canonical_json(self.load().get("identity")))

    def _read(self) -> bytes:
        try:
            return self.store.read(RUN)
        except ObjectNotFoundError as error:
            raise RunNotFoundError(
                f"there is no run '{self.name}' in {self.root.url}; `penstock runs` lists those that there are"
            ) from error


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run at a glance."""

    name: str
    stage: int | None = None
    """The newest committed, None before the first."""
    finished: str | None = None
    """Why the run ended, as its newest commit says; None if it goes on, or can."""
    env_steps: int = 0
    evaluation_return: float | None = None
    """Mean return of the newest evaluation that one of the last few commits holds."""
    created: str | None = None
    problem: str | None = None
    """What keeps the run from being read; everything else is then as far as it was read."""


def list_runs(root: Store) -> list[RunSummary]:
    """All runs in a store by name; a few small reads each, however large they are. Folders of others are left out.

    Raises:
        StoreError: the store can't be read.
    """
    return [summary for summary in (_summarise(RunFolder(root, name)) for name in run_names(root)) if summary]


def run_names(root: Store) -> list[str]:
    """Names of the folders that may hold runs, sorted."""
    folder = root.path(RUN)
    if folder is None:
        names = [name.removeprefix(_INDEX) for name in root.list(_INDEX)]
    elif folder.parent.is_dir():
        names = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()]
    else:
        names = []
    return sorted(filter(_NAME.fullmatch, names))


def _summarise(run: RunFolder) -> RunSummary | None:
    created = None
    try:
        says = run.load().get("created")
        created = says if isinstance(says, str) else None
        newest = run.log.newest()
        if newest is None:
            return RunSummary(run.name, created=created)
        return RunSummary(
            name=run.name,
            stage=newest["stage"],
            finished=newest["finished"],
            env_steps=newest["env_steps"],
            evaluation_return=_evaluation_return(run, newest),
            created=created,
        )
    except RunNotFoundError:
        return None
    except (CorruptObjectError, ObjectNotFoundError) as error:
        return RunSummary(run.name, created=created, problem=str(error))


def _evaluation_return(run: RunFolder, newest: dict[str, Any]) -> float | None:
    commit = newest
    # Bounded, because a run that never evaluates would be read from end to end.
    for stage in range(newest["stage"] - 1, newest["stage"] - _EVALUATION_LOOKBACK_COMMITS, -1):
        if commit["evaluation"] is not None or stage < 0:
            break
        commit = run.log.read(stage)
    value = (commit["evaluation"] or {}).get("mean_return")
    return float(value) if isinstance(value, int | float) else None
