"""Sends parameters from the learner to actors: publishes versions, and reads them through the node's cache."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from penstock.storage import system
from penstock.storage.cache.node_cache import CacheTally
from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError, StageMismatchError, StoreError
from penstock.storage.refs import SnapshotRef, difference_name, snapshot_name
from penstock.storage.tensors import load_tensors
from penstock.storage.transfer.background_uploads import Uploads
from penstock.tasks.data.snapshots.differences import apply_difference, encode_difference
from penstock.tasks.data.snapshots.handed_versions import decode_version, encode_version
from penstock.tasks.runtime.stored_objects import snapshot_folder, stored_snapshot, stored_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.storage.digest import Buffer
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.data.snapshots.handed_versions import HandedVersion, HandedVersions
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Params, State

logger = logging.getLogger(__name__)

_KEY = "snapshot/"
_WAIT_SECONDS = 60.0
_UPLOAD_THREADS = 2
_UPLOAD_BUDGET_BYTES = 256 << 20


class SnapshotReader:
    """Reads parameters by version, as they become available. For one act task, which closes it.

    While a task acts with one version, the next announced one is prefetched into the node's cache; `get` does not rely
    on it. A version that the learner of this process hands over is not read at all. With
    `distribution.snapshot_differences` a node that keeps the version before reads the difference, if it is there and
    gives the right bytes.

    Attributes:
        tally: hits and misses of the node's cache, prefetches included; differences are downloads.
    """

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        before: Commit | None,
        handed: HandedVersions | None = None,
    ) -> None:
        self._attempt = assignment.attempt
        self._context = context
        self._membership = membership
        self._known = {ref.version: ref for ref in (before.snapshots if before else ())}
        self._handed = handed
        self._unconfirmed: dict[int, HandedVersion] = {}
        self._confirming = threading.Lock()
        self._current: tuple[int, Params] | None = None
        self._seen = -1  # the newest version that was requested or prefetched
        self._closed = False
        self.tally = CacheTally()
        if context.run.store.path(snapshot_folder(self._attempt)) is None:  # local files need no fetching
            system.thread(self._prefetch, "snapshot-prefetch").start()

    def get(self, version: int) -> tuple[Params, float]:
        """Return the parameters of a version, and the seconds spent waiting for it to be handed over or published."""
        if self._current and self._current[0] == version:
            return self._current[1], 0.0
        handed, waited = self._handed, 0.0
        if handed is not None and version not in self._known:
            waited = self._wait(version, lambda: handed.holds(version))
        given = handed.take(version) if handed is not None else None
        if given is None:
            ref, buffer, more = self.find(version)
            params, waited = load_snapshot(buffer, ref), waited + more
        else:
            params = given.params
            self._unconfirmed[version] = given
            self._seen = max(self._seen, version)
        self._current = (version, params)
        return params, waited

    def confirm(self, version: int) -> None:
        """Wait until a version that was handed over is stored, and compare the two. For the threads that store rounds.

        So nothing is stored that was acted with a version that a restarted learner could not find and compare with.

        Raises:
            StageMismatchError: another version is stored.
        """
        if version not in self._unconfirmed:
            return
        with self._confirming:
            given = self._unconfirmed.get(version)
            if given is None:
                return
            self._wait(version)
            ref, content = self._known[version], given.digest()
            if ref.digest != content:
                raise StageMismatchError(
                    f"version {version} is stored as '{ref.name}', and the learner of this process made one with the "
                    f"digest {content}; all learners must have the same parameters. This attempt is given up and the "
                    f"stage starts again"
                )
            del self._unconfirmed[version]

    def find(self, version: int) -> tuple[SnapshotRef, memoryview, float]:
        """Return a version's reference and content, and the seconds spent waiting for it to be published."""
        waited = 0.0 if version in self._known else self._wait(version)
        self._seen = max(self._seen, version)
        ref = self._known[version]
        cache, store = self._context.cache, self._context.run.store
        return ref, cache.get_buffer(store, ref, self.tally, self._difference_of(ref)), waited

    @property
    def newest(self) -> int:
        """Return the newest version that is announced, or named by the commit before; -1 if there is none."""
        announced = [max(self._known, default=-1)]

        def collect(latest: Mapping[str, Any]) -> bool:
            announced.extend(int(key.removeprefix(_KEY)) for key in latest if key.startswith(_KEY))
            return True

        self._membership.wait_notification(collect, 0.0)
        return max(announced)

    def close(self) -> None:
        """Stop prefetching; does not wait for a fetch in progress, which is harmless."""
        self._closed = True
        self._membership.wake()

    def _wait(self, version: int, is_handed: Callable[[], bool] = lambda: False) -> float:
        """Wait until a version is stored, and remember its reference, or until it is handed over."""
        key = _key(version)
        waited = self._membership.wait(
            lambda latest: key in latest or is_handed(), lambda: self._poll(version), of_all=key
        )
        announced = self._membership.latest(key)
        if version not in self._known and announced is not None:
            self._known[version] = SnapshotRef.from_json(announced)
        return waited

    def _poll(self, version: int) -> bool:
        ref = stored_snapshot(self._context.run.store, version, self._attempt)
        if ref:
            self._known[version] = ref
            self._membership.share(_key(version), ref.to_json())
        return ref is not None

    def _difference_of(self, ref: SnapshotRef) -> Callable[[], memoryview | None] | None:
        return partial(self._make, ref) if self._context.config.distribution.snapshot_differences else None

    def _make(self, ref: SnapshotRef) -> memoryview | None:
        """Return a version's content by its difference from the one before; None if the node or the store lacks one.

        Raises:
            CorruptObjectError: the difference is damaged.
        """
        before = self._known.get(ref.version - 1)
        announced = None if before else self._membership.latest(_key(ref.version - 1))
        if announced is not None:
            before = SnapshotRef.from_json(announced)
        store = self._context.run.store
        try:
            # A stage's commit does not name the version before those that its first round acts with.
            before = before or stored_snapshot(store, ref.version - 1, self._attempt)
            base = self._context.cache.find(before) if before else None
            if base is None:
                return None
            difference = store.view(difference_name(ref))
        except (
            StoreError,
            StageMismatchError,
        ) as error:  # if the store is gone, the download of the whole snapshot says so
            logger.debug("could not read the difference name=%s error=%s", difference_name(ref), error)
            return None
        self.tally.count(downloads=1, origin_bytes=difference.nbytes)
        return apply_difference(base, difference)

    def _prefetch(self) -> None:
        announced: list[SnapshotRef] = []

        def has_newer(latest: Mapping[str, Any]) -> bool:
            announced[:] = [
                SnapshotRef.from_json(value)
                for key, value in latest.items()
                if key.startswith(_KEY) and int(key.removeprefix(_KEY)) > self._seen
            ]
            return self._closed or bool(announced)

        while not self._closed:
            if not self._membership.wait_notification(has_newer, _WAIT_SECONDS) or self._closed:
                continue
            ref = min(announced, key=lambda ref: ref.version)
            self._seen = max(self._seen, ref.version)
            try:
                self._context.cache.get(self._context.run.store, ref, self.tally, self._difference_of(ref))
            except Exception as error:  # noqa: BLE001  (`get` meets the same error, and raises it)
                logger.debug("could not prefetch name=%s error=%s", ref.name, error)


def load_snapshot(buffer: memoryview, ref: SnapshotRef) -> Params:
    """Return parameters by group and name, ready to act with; verifies the digest.

    Raises:
        CorruptObjectError: the file was altered or cut short, or is not a snapshot.
    """
    arrays, _ = load_tensors(buffer, ref.name, ref.digest)
    try:
        return decode_version(arrays)
    except ValueError as error:
        raise CorruptObjectError(f"'{ref.name}' is not a snapshot: {error}. Restore it from a copy") from error


class SnapshotPublisher:
    """Stores and announces versions. For one learn task; a context manager, whose end waits for uploads.

    On a remote store a version is uploaded while the next one is learned. It is announced when it is stored, so no
    actor uses one that a restarted learner could not find and compare with. With `distribution.snapshot_differences`
    its difference from the version before is stored at the same time, and it is announced when both are.

    Args:
        assignment: of the learner.
        context: of the run.
        membership: in the stage's gang.
        before: the version that the stage begins with; None in the first stage.
    """

    def __init__(
        self, assignment: Assignment, context: RunContext, membership: Membership, before: SnapshotRef | None = None
    ) -> None:
        self._attempt = assignment.attempt
        self._context = context
        self._membership = membership
        rounds = context.rounds_of(assignment.stage)
        versions = range(rounds.start, rounds.stop + 1)
        self._existing = stored_snapshots(context.run.store, versions, assignment.attempt)
        remote = context.run.store.path(snapshot_folder(assignment.attempt)) is None
        # Without the snapshot that failed to be stored, the shards for which its learner waits never come.
        self._uploads = Uploads(_UPLOAD_THREADS if remote else 0, _UPLOAD_BUDGET_BYTES, membership.fail)
        # Files of a local store are used in place, and a replay has no actors.
        self._differs = remote and context.config.has_actors and context.config.distribution.snapshot_differences
        self._newest: tuple[int, Buffer] | None = None
        if self._differs and before is not None:
            with suppress(StoreError, CorruptObjectError):  # the next version is then stored without a difference
                self._newest = before.version, context.cache.get_buffer(context.run.store, before)
        self.publish_seconds = 0.0
        self.published = self.published_bytes = 0
        """Number and bytes of versions that were not stored before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._uploads.finish()
        finally:
            self._uploads.close()

    def publish(self, version: int, state: State) -> SnapshotRef:
        """Store the actors' part of the parameters as a version; in the background if the store is remote.

        Raises:
            StageMismatchError: this version was published before, with other content.
            StoreError: an earlier version could not be stored.
        """
        started = time.perf_counter()
        dtype = self._context.config.distribution.snapshot_dtype
        data = encode_version(state.params, self._context.algorithm.actor_groups, dtype, version)
        ref = self.publish_encoded(version, data)
        self.publish_seconds += time.perf_counter() - started
        return ref

    def publish_encoded(self, version: int, data: bytes) -> SnapshotRef:
        """Store the encoded parameters of a version; as `publish`."""
        content = digest(data)
        name = snapshot_name(version, content)
        if self._attempt:
            name = f"{snapshot_folder(self._attempt)}/{name.rsplit('/', 1)[1]}"
        ref = SnapshotRef(name=name, digest=content, nbytes=len(data), version=version)
        stored = self._existing.get(version)
        base = self._newest[1] if self._newest and self._newest[0] == version - 1 else None
        if self._differs:
            self._newest = version, data
        if stored is None:
            self.published += 1
            self.published_bytes += len(data)
            self._context.cache.put(self._context.run.store, ref, [data])  # actors of this node need not download it
            difference = None
            if base is not None:
                difference = self._uploads.submit(len(data), partial(self._store_difference, ref, data, base))
            self._uploads.submit(len(data), partial(self._store, ref, data, difference))
        elif stored != name:
            raise StageMismatchError(
                f"version {version} was published as '{stored}', and learning it again gave '{name}'; a stage must be "
                f"a deterministic function of the commit before it. This attempt is given up and the stage starts again"
            )
        else:
            self._announce(ref)
        return ref

    def _store(self, ref: SnapshotRef, data: bytes, difference: Callable[[], None] | None) -> None:
        self._context.run.store.write(ref.name, [memoryview(data)])
        if difference is not None:
            difference()
        self._announce(ref)

    def _store_difference(self, ref: SnapshotRef, data: bytes, base: Buffer) -> None:
        difference = encode_difference(base, data)
        if difference is not None:
            self._context.run.store.write(difference_name(ref), [difference])

    def _announce(self, ref: SnapshotRef) -> None:
        self._membership.notify("act", _key(ref.version), ref.to_json())


def _key(version: int) -> str:
    return f"{_KEY}{version}"
