"""Finds what an interrupted fork, copy or import has left in the folder of a run that does not exist yet.

A new run would take such objects for its own, since a stage's members use what they find stored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError
from penstock.storage.runs.lease import refuse_driven

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.protocol import Store

# Initial parameters and plans are left out: a new run writes them before its `run.json`, and their names are digests
# that it must know. Objects with other names are not Penstock's.
_OF_A_RUN = re.compile(
    r"(?:shards|states|choices|orders)/[0-9]{8,18}(?:\.[0-9]+)?/[^/]+"
    r"|(?:snapshots/(?:attempt-[0-9]+/)?|differences/|checkpoints/)[0-9]{8,18}-[^/]+"
    r"|(?:commits|commit-copies|extensions|evaluations)/[0-9][^/]*\.json|commits/rollup-[^/]+\.arrow"
    r"|latest\.json|retention\.json"
)


def refuse_leftovers(run: RunFolder) -> None:
    """Refuse to create a run where objects of another one are.

    Raises:
        ConfigError: an interrupted fork, copy or import has left some.
        LeaseHeldError: a fork, copy or import of this host is making the run.
    """
    found = _leftovers(run.store)
    if found and not run.exists():
        refuse_driven(run.store)  # it goes on, and is not to be removed
        raise ConfigError(
            f"{run.store.url} has no 'run.json', but {len(found)} objects of a run, such as '{found[0]}': a fork, copy "
            f"or import was interrupted, or the folder was moved or removed under a run. Give that command again, or "
            f"choose another name, or remove the folder"
        )


def clear_leftovers(run: RunFolder, keep: Collection[str]) -> None:
    """Remove what was left of another run, but for names that are written again, or compared."""
    run.store.delete([name for name in _leftovers(run.store) if name not in keep])


def _leftovers(store: Store) -> list[str]:
    return sorted(filter(_OF_A_RUN.fullmatch, store.list()))
