"""Snapshots on their way back: the learner publishes a version, actors get it through the node's cache."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from storage.digest import digest
from storage.errors import StageMismatchError
from storage.refs import SnapshotRef, parse_snapshot_name, snapshot_name
from storage.tensors import load_tensors, save_tensors
from tasks.stored import snapshot_folder, stored_snapshot

if TYPE_CHECKING:
    from tasks.algorithm import Params
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership
    from tasks.specs import State

_SEPARATOR = "/"


class SnapshotReader:
    """Parameters by version, as they become available. For one act task."""

    def __init__(
        self, assignment: Assignment, context: RunContext, membership: Membership, before: dict[str, Any] | None
    ) -> None:
        self._attempt = assignment.attempt
        self._context = context
        self._membership = membership
        self._known = {ref.version: ref for ref in map(SnapshotRef.from_json, before["snapshots"] if before else [])}
        self._current: tuple[int, Params] | None = None

    def get(self, version: int) -> tuple[Params, float]:
        """Parameters of a version, and the seconds spent waiting for it to be published."""
        if self._current and self._current[0] == version:
            return self._current[1], 0.0
        waited = 0.0
        if version not in self._known:
            waited = self._membership.wait(lambda hints: _key(version) in hints, lambda: self._look(version))
            if version not in self._known:
                self._known[version] = SnapshotRef.from_json(self._membership.hinted(_key(version)))
        ref = self._known[version]
        buffer = self._context.cache.get_buffer(self._context.run.store, ref)
        params = load_snapshot(buffer, ref)
        self._current = (version, params)
        return params, waited

    def _look(self, version: int) -> bool:
        ref = stored_snapshot(self._context.run.store, version, self._attempt)
        if ref:
            self._known[version] = ref
        return ref is not None


def load_snapshot(buffer: memoryview, ref: SnapshotRef) -> Params:
    """Parameters by group and name; verifies the digest."""
    tensors, _ = load_tensors(buffer, ref.name, ref.digest)
    params: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition(_SEPARATOR)
        params.setdefault(group, {})[rest] = torch.from_numpy(value)
    return params


class SnapshotPublisher:
    """Stores and announces versions. For one learn task."""

    def __init__(self, assignment: Assignment, context: RunContext, membership: Membership) -> None:
        self._attempt = assignment.attempt
        self._context = context
        self._membership = membership
        self._existing = {
            parse_snapshot_name(name).version: name
            for name in context.run.store.list(f"{snapshot_folder(assignment.attempt)}/")
            if name.count("/") == snapshot_folder(assignment.attempt).count("/") + 1
        }
        self.publish_seconds = 0.0

    def publish(self, version: int, state: State) -> SnapshotRef:
        """Store the actors' part of the parameters as a version.

        Raises:
            StageMismatchError: this version was published before, with other content.
        """
        started = time.perf_counter()
        tensors = {
            f"{group}{_SEPARATOR}{name}": value.detach().cpu().numpy()
            for group in self._context.algorithm.actor_groups
            for name, value in state.params[group].items()
        }
        data = save_tensors(tensors, {"version": version})
        name = snapshot_name(version, digest(data))
        if self._attempt:
            name = f"{snapshot_folder(self._attempt)}/{name.rsplit('/', 1)[1]}"
        ref = SnapshotRef(name=name, digest=digest(data), nbytes=len(data), version=version)
        stored = self._existing.get(version)
        if stored is None:
            self._context.run.store.write(name, [memoryview(data)])
        elif stored != name:
            raise StageMismatchError(
                f"version {version} was published as '{stored}', and learning it again gave '{name}'; a stage must be "
                f"a deterministic function of the commit before it. This attempt is given up and the stage starts again"
            )
        self._membership.hint("act", _key(version), ref.to_json())
        self.publish_seconds += time.perf_counter() - started
        return ref


def _key(version: int) -> str:
    return f"snapshot/{version}"
