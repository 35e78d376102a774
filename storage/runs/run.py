"""A run's folder: its description (`run.json`), its log, and the list of all runs of a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.storage.digest import canonical_json, digest, parse_json
from penstock.storage.errors import (
    CommitConflictError,
    ConfigError,
    CorruptObjectError,
    ObjectExistsError,
    ObjectNotFoundError,
    RunExistsError,
    RunNotFoundError,
)
from penstock.storage.runs.commits import CommitLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.stores.protocol import Store

RUN = "run.json"
_INDEX = ".runs/"
"""Prefix under which remote stores, which have no folders to list, keep an empty object for each run."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_EVALUATION_LOOKBACK_COMMITS = 32


class RunFolder:
    """One run in a store, whether it exists yet or not. Cheap to make and to pickle.

    Args:
        root: the store that holds the runs.
        name: the run's name.
        is_fenced: as of `CommitLog`, which alone uses it, to add commits.

    Raises:
        ConfigError: the name is not valid for a run.
    """

    def __init__(self, root: Store, name: str, *, is_fenced: bool = True) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' can't name a run: expected 1 to 64 of a-z, 0-9, '.', '_', '-', of which the first is a "
                f"letter or a digit"
            )
        self.root = root
        """The store that holds the runs."""
        self.name = name
        self.store = root.at(name)
        self.log = CommitLog(self.store, is_fenced=is_fenced)

    def __repr__(self) -> str:
        return f"RunFolder({self.store.url!r})"

    def exists(self) -> bool:
        """Return whether the run was created."""
        return self.store.exists(RUN)

    def create(self, run_json: Mapping[str, object]) -> None:
        """Write the run's description, once; durable.

        Raises:
            RunExistsError: it was created before.
            ValueError: the description can't be encoded as JSON.
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
        """Return the run's description.

        Args:
            needed: names that it must have.

        Raises:
            RunNotFoundError: it was not created.
            CorruptObjectError: `run.json` was altered or cut short, or lacks a needed name.
        """
        data = self._read()
        try:
            loaded = parse_json(data)
            intact = isinstance(loaded, dict) and canonical_json(loaded) + b"\n" == data
        except ValueError:
            intact = False
        if not intact:
            raise CorruptObjectError(
                f"'{RUN}' in {self.store.url} was altered or cut short: {len(data)} bytes that are not a canonical "
                f"JSON object. Restore it from a copy; without it the run can't be resumed"
            )
        missing = [name for name in needed if name not in loaded]
        if missing:
            raise CorruptObjectError(
                f"'{RUN}' in {self.store.url} was altered: found {', '.join(sorted(loaded))}, "
                f"expected {', '.join(missing)} as well. Restore it from a copy; without it the run can't be resumed"
            )
        return dict(loaded)

    def genesis(self) -> str:
        """Return the first commit's parent: the digest of `identity` in `run.json`, which determines the bytes.

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
                f"there is no run '{self.name}' in {self.root.url}; `penstock runs` lists the existing ones"
            ) from error


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run at a glance."""

    name: str
    stage: int | None = None
    """The newest committed stage; None before the first."""
    finished: str | None = None
    """The reason why the run ended, from its newest commit; None if it continues, or can."""
    env_steps: int = 0
    evaluation_return: float | None = None
    """Mean return of the newest evaluation that one of the last few commits holds."""
    created: str | None = None
    problem: str | None = None
    """The error that prevents reading the run; the other fields then hold what was read before it."""


def list_runs(root: Store) -> list[RunSummary]:
    """Return all runs in a store by name, in a few small reads each; folders that hold no run are left out.

    Raises:
        StoreError: the store can't be read.
    """
    return [summary for summary in (_summarise(RunFolder(root, name)) for name in run_names(root)) if summary]


def run_names(root: Store) -> list[str]:
    """Return the names of the folders that may hold runs, sorted."""
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
        found = run.load().get("created")
        created = found if isinstance(found, str) else None
        newest = run.log.newest()
        if newest is None:
            return RunSummary(run.name, created=created)
        return RunSummary(
            name=run.name,
            stage=newest.stage,
            finished=newest.finished,
            env_steps=newest.env_steps,
            evaluation_return=_evaluation_return(run, newest),
            created=created,
        )
    except RunNotFoundError:
        return None
    except (CommitConflictError, CorruptObjectError, ObjectNotFoundError) as error:
        return RunSummary(run.name, created=created, problem=str(error))


def _evaluation_return(run: RunFolder, newest: Commit) -> float | None:
    commit = newest
    # Bounded, because a run that never evaluates would be read from end to end.
    for stage in range(newest.stage - 1, newest.stage - _EVALUATION_LOOKBACK_COMMITS, -1):
        if commit.evaluation is not None or stage < 0:
            break
        commit = run.log.read(stage)
    value = (commit.evaluation or {}).get("mean_return")
    return None if value is None else float(value)
