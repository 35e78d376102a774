"""Runs that belong together: those that differ by their seed alone, and those whose commits are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.flows.display.amounts import amount
from penstock.flows.settings.listing import flat_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.tasks.analysis.history import History

_SEED = "seed"
_NOT_COMPUTED = ("name", "store", "cluster.")


def seed_groups(histories: Sequence[History]) -> list[list[History]]:
    """Return the groups of two runs or more whose settings are the same except for the seed; each seed counts once."""
    groups: dict[str, dict[object, History]] = {}
    for history in histories:
        settings = _computed(history.config)
        seed = settings.pop(_SEED, None)
        groups.setdefault(repr(sorted(settings.items())), {}).setdefault(seed, history)
    return [list(by_seed.values()) for by_seed in groups.values() if len(by_seed) > 1]


def identical_runs(histories: Sequence[History]) -> dict[str, tuple[str, int]]:
    """Return, by the name of a run, an earlier run with the same commits, and the number of stages that they share."""
    found: dict[str, tuple[str, int]] = {}
    for at, history in enumerate(histories):
        commits = {stage.index: stage.commit for stage in history.stages}
        for other in histories[:at]:
            if other.run.name in found:
                continue
            shared = [stage for stage in other.stages if stage.index in commits]
            # A commit names the digest of the one before it: if the newest ones agree, so do all.
            if shared and commits[shared[-1].index] == shared[-1].commit:
                found[history.run.name] = (other.run.name, shared[-1].index + 1)
                break
    return found


def identical_notes(histories: Sequence[History]) -> list[str]:
    """Return a sentence for each run that has the commits of another one."""
    return [
        f"{name} and {other} are identical in the {amount(stages, 'stages')} that both have: the "
        f"line of {name} is dashed and lies upon the other's."
        for name, (other, stages) in identical_runs(histories).items()
    ]


def _computed(config: Mapping[str, Any]) -> dict[str, object]:
    return {path: value for path, value in flat_settings(config).items() if not path.startswith(_NOT_COMPUTED)}
