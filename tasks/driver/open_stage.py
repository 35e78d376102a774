"""Repairs the unfinished stage of a run on a local disk before it is resumed.

Objects of an unfinished stage are not synced to the disk one by one. After a power cut their names may exist with empty
or cut content. What is damaged is removed, and the stage makes it again with the same bytes. Remote stores keep whole
objects or none.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from penstock.storage import system
from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError
from penstock.storage.refs import Ref, parse_checkpoint_name, parse_snapshot_name, ref_of_name, stage_folder
from penstock.storage.runs.run import RUN
from penstock.storage.shards.verify import check_content, read_whole
from penstock.tasks.driver.attempts import current_attempt
from penstock.tasks.runtime.stored_objects import named_objects, snapshot_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.protocol import Store

_THREADS = 4
_logger = logging.getLogger(__name__)


def continue_from(run: RunFolder, newest_stage: int | None = None) -> Commit | None:
    """Return the newest commit, after which a run that this process drives continues; repairs the stage after it.

    Args:
        run: a run that this process drives.
        newest_stage: a stage that is known to be committed.

    Raises:
        CommitConflictError: two flows committed a stage with different bytes, on a store that let both.
        CorruptObjectError: the newest commit is damaged, or belongs to other settings.
        StoreError: the store can't be read or written.
    """
    genesis = run.genesis()
    newest = run.log.complete(run.log.newest(newest_stage), genesis)
    if newest is not None:
        run.log.check_genesis(genesis)
    repair_open_stage(run, newest.stage + 1 if newest else 0, newest.version if newest else -1)
    return newest


def repair_open_stage(run: RunFolder, stage: int, version: int) -> int:
    """Remove damaged objects of a stage that has no commit; logs one line if there are any.

    Args:
        run: a run that this process drives; one on a remote store is left as it is, without a request.
        stage: the stage after the newest commit; its current attempt is repaired.
        version: the newest committed version of the parameters, -1 before the first commit; later snapshots belong to
            the stage, as that of version 0 to the first.

    Returns:
        The number of removed objects.

    Raises:
        StoreError: the store can't be read or written.
    """
    store = run.store
    if store.path(RUN) is None:
        return 0
    refs = list(_refs(store, stage, current_attempt(run, stage), version))
    with system.executor(_THREADS, "open-stage") as threads:
        intact = list(threads.map(lambda ref: _is_intact(store, ref), refs))
    damaged = [ref.name for ref, is_intact in zip(refs, intact, strict=True) if not is_intact]
    if damaged:
        store.delete(damaged)
        kinds = Counter(name.partition("/")[0] for name in damaged)
        _logger.warning(
            "run=%s stage=%d: %d of %d objects of the unfinished stage were damaged, as after a power cut, and are "
            "made again: %s",
            run.name,
            stage,
            len(damaged),
            len(refs),
            ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
        )
    return len(damaged)


def _is_intact(store: Store, ref: Ref) -> bool:
    try:
        check_content(read_whole(store, ref), ref, store.url)
    except CorruptObjectError:
        return False
    except ObjectNotFoundError:  # removed meanwhile, such as by garbage collection
        return True
    return True


def _refs(store: Store, stage: int, attempt: int, version: int) -> Iterator[Ref]:
    """Yield references to the stored objects of the stage; names of other programs' files are passed over."""
    for folder in (stage_folder("shards", stage, attempt), stage_folder("states", stage, attempt)):
        yield from (ref for _, ref in named_objects(store, folder, ref_of_name))
    for name, ref in named_objects(store, f"{snapshot_folder(attempt)}/", ref_of_name):
        if parse_snapshot_name(name).version > version and name.rpartition("/")[0] == snapshot_folder(attempt):
            yield ref
    for name, ref in named_objects(store, "checkpoints/", ref_of_name):
        if parse_checkpoint_name(name).stage >= stage:
            yield ref
