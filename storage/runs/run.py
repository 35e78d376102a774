"""A run's folder: its description (`run.json`), its log, its evaluations, and the list of all runs of a store."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
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
from penstock.storage.refs import initial_name, ref_of_name
from penstock.storage.runs.commits import CommitLog, commit_name
from penstock.storage.runs.continuing.extensions import without_end
from penstock.storage.runs.lease import driver
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.storage.refs import Ref
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.stores.protocol import Store

RUN = "run.json"
USUAL_STORE = "runs"
"""The store of a command that is given none: a folder of the working directory."""
_DIGEST = "digest"
"""Entry of `run.json`: the digest of the canonical JSON of the others."""
_INDEX = ".runs/"
"""Prefix under which remote stores, which have no folders to list, keep an empty object for each run."""
SWEEPS = ".sweeps/"
"""The place of sweeps' records in a store. No run's name begins with a dot."""
_RETURNS = ("mean_return", "min_return", "max_return")
_EVALUATIONS = "evaluations/"
"""Folder of the results of `penstock evaluate` and of evaluations that follow a run."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NAME_RULE = "1 to 64 of a-z, 0-9, '.', '_', '-', of which the first is a letter or a digit"
"""The form of a run's name, as errors say it."""
_EVALUATION_LOOKBACK_COMMITS = 32
_log = logging.getLogger(__name__)


def store_option(url: str) -> str:
    """Return what a command line needs after a blank to find a store; empty for the usual one."""
    usual = {USUAL_STORE, str(Path(USUAL_STORE).absolute())}  # a store that was opened has no relative folder
    return "" if url in usual else f" --store {shlex.quote(url)}"


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
            where, slash, last = name.rstrip("/").rpartition("/")
            is_path = slash and _NAME.fullmatch(last) and not where.endswith(":/")
            hint = (
                f"; a store is given apart: {last} --store {where or '/'} (in Python store={where or '/'!r})"
                if is_path
                else ""
            )
            raise ConfigError(f"'{name}' can't name a run: expected {NAME_RULE}{hint}")
        self.root = root
        """The store that holds the runs."""
        self.name = name
        self.store = root.at(name)
        self.log = CommitLog(self.store, is_fenced=is_fenced)

    def __repr__(self) -> str:
        return f"RunFolder({self.store.url!r})"

    def command(self, name: str, *options: str) -> str:
        """Return a command line of `penstock` for this run, with the store if it has to be given, as errors name it.

        Args:
            name: of the command, such as `resume`.
            options: that follow the run's name.
        """
        return " ".join([f"penstock {name}", self.name, *options]) + store_option(self.root.url)

    def exists(self) -> bool:
        """Return whether the run was created."""
        return self.store.exists(RUN)

    def create(self, run_json: Mapping[str, object]) -> None:
        """Write the run's description, once, with its digest; durable.

        Raises:
            RunExistsError: it was created before.
            ValueError: the description can't be encoded as JSON.
        """
        content = {name: value for name, value in run_json.items() if name != _DIGEST}
        data = canonical_json({**content, _DIGEST: digest(canonical_json(content))}) + b"\n"
        if self.store.path(RUN) is None:
            # Before the run, which could not be listed if this process ended between both; without one it is left out.
            self.root.write(f"{_INDEX}{self.name}", [b""])
        try:
            self.store.create(RUN, data)
        except ObjectExistsError as error:
            # The answer to the request was lost, and the client has sent it again.
            if self.store.path(RUN) is None and self._read() == data:
                return
            raise RunExistsError(
                f"there is a run '{self.name}' in {self.root.url} already; choose another name, or resume it with "
                f"`{self.command('resume')}`"
            ) from error

    def was_imported(self) -> bool:
        """Return whether its episodes came from a dataset, which says nothing of an environment; errors as `load`."""
        return "imported" in self.load().get("config", {})

    def load(self, *needed: str) -> dict[str, Any]:
        """Return the run's description, without its digest.

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
            # Version 0.1 wrote none.
            found = loaded.pop(_DIGEST, None) if intact else None
            intact = intact and found in (None, digest(canonical_json(loaded)))
        except ValueError:
            intact = False
        if not intact:
            raise CorruptObjectError(
                f"'{RUN}' in {self.store.url} was altered or cut short: {len(data)} bytes that are not a canonical "
                f"JSON object with its own digest. Restore it from a copy; without it the run can't be resumed"
            )
        missing = [name for name in needed if name not in loaded]
        if missing:
            raise CorruptObjectError(
                f"'{RUN}' in {self.store.url} was altered: found {', '.join(sorted(loaded))}, "
                f"expected {', '.join(missing)} as well. Restore it from a copy; without it the run can't be resumed"
            )
        return dict(loaded)

    def description_digest(self) -> str:
        """Return the digest of the run's description: another run of that name and place has another one.

        Errors as `load`.
        """
        return digest_of_description(self.load())

    def genesis(self) -> str:
        """Return the first commit's parent: the digest of `identity` in `run.json`, which determines the bytes.

        Runs that differ in name, place or time alone have the same one, and so the same commits.

        Raises:
            RunNotFoundError: the run was not created.
        """
        return digest(canonical_json(self.load().get("identity")))

    def newest(self) -> Commit | None:
        """Return the newest commit as the run's state: `finished` is None if the run was extended after it.

        Use `log.newest()` where the commit's own bytes count. Errors as it and `extension_after`.
        """
        return without_end(self.store, self.log.newest())

    def initial(self) -> Ref | None:
        """Return the reference to the parameters of another run that this one starts with; its size is 0.

        Raises:
            RunNotFoundError: the run was not created.
            CorruptObjectError: `run.json` was altered.
        """
        found = self.load().get("identity", {}).get("init_from")
        if found is None:
            return None
        try:
            return ref_of_name(initial_name(str(found["digest"])))
        except (CorruptObjectError, KeyError, TypeError) as error:
            raise CorruptObjectError(
                f"'{RUN}' in {self.store.url} was altered: its 'init_from' is {found!r}, expected a digest. Restore it "
                f"from a copy; without it the run can't be resumed"
            ) from error

    def plan(self) -> Ref | None:
        """Return the reference to a replay's list of shards; its size is 0. None if the run is no replay.

        Raises:
            RunNotFoundError: the run was not created.
            CorruptObjectError: `run.json` was altered.
        """
        reads = self.load().get("reads")
        if reads is None:
            return None
        try:
            return ref_of_name(str(reads["plan"]))
        except (CorruptObjectError, KeyError, TypeError) as error:
            raise CorruptObjectError(
                f"'{RUN}' in {self.store.url} was altered: its 'reads' is {reads!r}, expected a plan's name. Restore "
                f"it from a copy; without it the run can't be resumed"
            ) from error

    def described(self) -> list[Ref]:
        """Return references to what `run.json` names: initial parameters and a replay's plan. Errors as of these."""
        return [ref for ref in (self.initial(), self.plan()) if ref is not None]

    def _read(self) -> bytes:
        try:
            return self.store.read(RUN)
        except ObjectNotFoundError as error:
            raise RunNotFoundError(
                f"there is no run '{self.name}' in {self.root.url}; `penstock runs{store_option(self.root.url)}` lists "
                f"the existing ones"
            ) from error


def digest_of_description(loaded: Mapping[str, object]) -> str:
    """Return the digest of what `RunFolder.load` returned."""
    return digest(canonical_json(loaded))


def open_run(run: str | os.PathLike[str], store: str | os.PathLike[str] | None = None) -> RunFolder:
    """Open a run by the address of its folder, or by its name in a store.

    Raises:
        ConfigError: the address names no run in a store, or is none.
        RunNotFoundError: there is no such run.
    """
    for name, value in (("run", run), ("store", store or "")):
        if not isinstance(value, str | os.PathLike):
            expected = "a run's folder, its s3:// address or its name" if name == "run" else "a folder or an address"
            raise ConfigError(f"{name} is {value!r}, expected {expected}")
    run, store = os.fspath(run), None if store is None else os.fspath(store)
    where, _, name = run.rstrip("/").rpartition("/")
    if where and store is not None:
        raise ConfigError(f"run '{run}' is an address, and store '{store}' another one: give a name with a store")
    if not name or where.endswith(":/"):
        raise ConfigError(f"'{run}' names a store and no run in it, expected FOLDER/RUN or s3://BUCKET/FOLDER/RUN")
    folder = RunFolder(open_store(where or store or USUAL_STORE), name)
    folder.load()
    return folder


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
    driver: str | None = None
    """Host and process that drive an unfinished run, as far as its lease says; None if none does."""
    replay: bool = False
    """True if the run learns from stored steps, and nothing acts: `env_steps` then counts those learned from."""


def list_runs(root: Store | str | os.PathLike[str]) -> list[RunSummary]:
    """Return all runs in a store by name, in a few small reads each; folders that hold no run are left out.

    Args:
        root: the store, its folder or its address.

    Raises:
        ConfigError: the address names no store.
        StoreError: the store can't be read.
    """
    if isinstance(root, str | os.PathLike):
        root = open_store(os.fspath(root))
    return [summary for summary in (_summarise(RunFolder(root, name)) for name in run_names(root)) if summary]


def run_names(root: Store) -> list[str]:
    """Return the names of the folders that may hold runs, sorted."""
    folder = root.path(RUN)
    if folder is None:
        names = [name.removeprefix(_INDEX) for name in root.list(_INDEX)]
    elif folder.parent.is_dir():
        names = list(_readable(folder.parent))
    else:
        names = []
    return sorted(filter(_NAME.fullmatch, names))


def _readable(root: Path) -> Iterator[str]:
    """Yield the names of the folders that this user may read: in a shared one, others keep some to themselves."""
    for entry in root.iterdir():
        if not entry.is_dir():
            continue
        try:
            next(iter(entry.iterdir()), None)
        except PermissionError:
            _log.warning("'%s' is left out: this user may not read that folder", entry)
        except FileNotFoundError:
            continue  # removed meanwhile
        else:
            yield entry.name


def best_version(
    run: RunFolder, commits: Iterable[Commit], versions: set[int] | None = None, *, skip_damaged: bool = False
) -> int | None:
    """Return the version with the highest mean return among evaluations; of equal ones the newest.

    Of several evaluations of a version, the one of most episodes counts; of as many, the best.

    Args:
        run: the run.
        commits: its commits, whose evaluations count.
        versions: those that count; None: all.
        skip_damaged: leave damaged evaluations out.

    Returns:
        None if none was evaluated.

    Raises:
        CorruptObjectError: an evaluation is damaged.
    """
    # (episodes, mean return) of each version
    found: dict[int, tuple[int, float]] = {}
    for result in [*(commit.evaluation for commit in commits), *stored_evaluations(run)]:
        if result is None:
            continue
        try:
            version, mean_return = int(result["version"]), float(result["mean_return"])
            if not math.isnan(mean_return):
                found[version] = max(found.get(version, (-1, 0.0)), (int(result.get("episodes", 0)), mean_return))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if skip_damaged:
                continue
            raise CorruptObjectError(f"an evaluation of run '{run.name}' is damaged: {json.dumps(result)}") from error
    counting = [version for version in found if versions is None or version in versions]
    return max(counting, key=lambda version: (found[version][1], version), default=None)


def stored_evaluations(run: RunFolder) -> list[Mapping[str, Any]]:
    """Return the results of `penstock evaluate` and of evaluations that follow a run, in no order."""
    return [
        value
        for _, value in named_values(run, _EVALUATIONS)
        if all(isinstance(value.get(name), int) for name in ("version", "episodes"))
        and all(_is_finite(value.get(name, value.get("mean_return"))) for name in _RETURNS)
    ]


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def named_values(run: RunFolder, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and JSON objects below a prefix; other data is passed over: no run needs it to continue."""
    for name in run.store.list(prefix):
        if not name.endswith(".json"):
            continue
        try:
            value = parse_json(run.store.read(name))
        except ValueError:
            continue
        if isinstance(value, dict) and value:
            yield name, value


def _summarise(run: RunFolder) -> RunSummary | None:
    created, replay = None, False
    try:
        description = run.load()
        found, config = description.get("created"), description.get("config")
        created = found if isinstance(found, str) else None
        replay = isinstance(config, dict) and "source" in config
        newest = run.newest()
        if newest is None:
            return RunSummary(run.name, created=created, driver=_driver_of(run), replay=replay)
        return RunSummary(
            name=run.name,
            stage=newest.stage,
            finished=newest.finished,
            env_steps=newest.env_steps,
            evaluation_return=_evaluation_return(run, newest),
            created=created,
            driver=None if newest.finished else _driver_of(run),
            replay=replay,
        )
    except RunNotFoundError:
        return None
    except (CommitConflictError, CorruptObjectError, ObjectNotFoundError) as error:
        return RunSummary(run.name, created=created, problem=str(error), replay=replay)


def _driver_of(run: RunFolder) -> str | None:
    lease = driver(run.store)
    return f"{lease.host} pid {lease.pid}" if lease else None


def _evaluation_return(run: RunFolder, newest: Commit) -> float | None:
    commit = newest
    # Bounded, because a run that never evaluates would be read from end to end.
    for stage in range(newest.stage - 1, newest.stage - _EVALUATION_LOOKBACK_COMMITS, -1):
        if commit.evaluation is not None or stage < 0:
            break
        commit = run.log.read(stage)
    value = (commit.evaluation or {}).get("mean_return")
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise CorruptObjectError(
            f"the evaluation in '{commit_name(commit.stage)}' of run '{run.name}' is damaged: "
            f"{json.dumps(commit.evaluation)}"
        ) from error


_OF_WHO_DRIVES = frozenset(("cluster", "store"))
"""Tables of who drives a run, which no run stores. In a `run.json` they are somebody else's: they name callbacks, which
are imported, schedulers and trackers, which are connected to, and folders, which are written to."""


def stored_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a `run.json` by the names that they have now: `distribution` was `placement` once.

    What belongs to whoever drives a run is left out.

    Raises:
        ConfigError: they are no table.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"stored settings are {values!r}, expected a table: restore the run's `run.json` from a copy")
    own = {name: value for name, value in values.items() if name not in _OF_WHO_DRIVES}
    return {"distribution" if name == "placement" else name: value for name, value in own.items()}
