"""Finds one of a run's snapshots, by what a user types. Imports no torch."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import best_version, open_run, stored_evaluations
from penstock.tasks.data.replay.given_episodes import require_learned
from penstock.tasks.setup.config.consent import record_consent, require_consent

if TYPE_CHECKING:
    from penstock.storage.refs import SnapshotRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder

Version: TypeAlias = int | Literal["newest", "best"]
"""A snapshot's version, the newest one, or the one with the best evaluation."""


def parse_version(text: str) -> Version:
    """Parse a version as it is typed.

    Raises:
        ConfigError: it is neither a number nor a word that is known.
    """
    if text in {"newest", "best"}:
        return cast("Literal['newest', 'best']", text)
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(f"version {text!r}, expected 'newest', 'best' or the number of a snapshot")


def check_policy(run: str, version: Version, store: str | None, *, trust: bool) -> None:
    """Refuse the mistakes that `penstock.load_policy` finds in a few small reads, before torch is imported.

    The best version is not looked for, but for whether there is one: all commits would be read twice. Arguments and
    errors as of that function.
    """
    folder = open_run(run, store)
    if trust:
        record_consent(folder)
    require_consent(folder)
    newest, _ = find_snapshot(folder, "newest" if version == "best" else version)
    if version == "best" and not _is_evaluated(folder, newest):
        raise _not_evaluated(folder)


def find_snapshot(run: RunFolder, version: Version) -> tuple[Commit, SnapshotRef]:
    """Return a snapshot's reference and the commit that names it; errors as `penstock.load_policy`."""
    newest = run.log.newest()
    if newest is None:
        raise ConfigError(f"run '{run.name}' has committed nothing yet; load its policy after the first stage")
    require_learned(run, newest)
    wanted = _best_version(run, newest) if version == "best" else newest.version if version == "newest" else version
    if isinstance(wanted, bool) or not isinstance(wanted, Integral):  # NumPy's too
        raise ConfigError(f"version {version!r}, expected 'newest', 'best' or the number of a snapshot")
    wanted = int(wanted)
    commit = _commit_of(run, newest, wanted)
    ref = next((ref for ref in commit.snapshots if ref.version == wanted), None) if commit else None
    if commit is None or ref is None:
        raise ConfigError(
            f"run '{run.name}' has no version {wanted}: its commits name versions up to {newest.version}, and the "
            f"newest of each stage is kept with every commit"
        )
    if not run.store.exists(ref.name):
        raise ConfigError(
            f"version {wanted} of run '{run.name}' was removed, by `penstock gc` or by hand; version {newest.version} "
            f"is the newest one"
        )
    return commit, ref


def _commit_of(run: RunFolder, newest: Commit, version: int) -> Commit | None:
    """Return the first commit whose newest version is at least this one: versions grow with stages."""
    low, high = 0, newest.stage
    if version > newest.version or version < 0:
        return None
    while low < high:
        middle = (low + high) // 2
        if run.log.read(middle).version >= version:
            high = middle
        else:
            low = middle + 1
    return run.log.read(low)


def _best_version(run: RunFolder, newest: Commit) -> int:
    """Return the version with the highest mean return among evaluations; of equal ones the newest."""
    best = best_version(run, map(run.log.read, range(newest.stage + 1)))
    if best is None:
        raise _not_evaluated(run)
    return best


def _is_evaluated(run: RunFolder, newest: Commit) -> bool:
    """Return whether a version was evaluated, which one of the newest commits mostly says."""
    commits = (run.log.read(stage) for stage in range(newest.stage, -1, -1))
    return any(commit.evaluation is not None for commit in commits) or bool(stored_evaluations(run))


def _not_evaluated(run: RunFolder) -> ConfigError:
    return ConfigError(
        f"run '{run.name}' has no evaluation, so none of its versions is the best: `{run.command('evaluate')}` makes "
        f"one, and schedule.evaluate_every_stages makes them while it trains"
    )
