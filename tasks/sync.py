"""The sync fragment: where a stage's parameters begin, a published version a round, a checkpoint at the end.

Held by the learner, by the first of several that have the same bytes, or by a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from storage.digest import digest
from storage.refs import Ref, SnapshotRef
from tasks.algorithm import window_spec
from tasks.checkpoints import load_checkpoint, write_checkpoint
from tasks.feed import check_reader, reader_at
from tasks.placement import crosses
from tasks.snapshots import SnapshotPublisher
from tasks.streams import Purpose, seed_of
from tasks.window import RoundWindow

if TYPE_CHECKING:
    import torch

    from storage.order import ReaderState
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.edges import EdgeTally
    from tasks.membership import Membership
    from tasks.specs import State


@dataclass(frozen=True, slots=True)
class Begun:
    """What a stage begins with."""

    state: State
    reader: ReaderState
    """Where reading stands."""
    published: list[SnapshotRef]
    """What the commit before names; nothing before the first stage."""
    window: RoundWindow
    """The rounds that are learned from, as they are before the stage."""


def begin_stage(assignment: Assignment, context: RunContext, device: torch.device) -> Begun:
    """What a stage goes on from.

    Raises:
        CorruptObjectError: the checkpoint is damaged, or another stage's.
    """
    spec, rounds = window_spec(context.algorithm), context.rounds_of(assignment.stage).start
    before = context.commit_before(assignment)
    if before is None:
        state = context.algorithm.init(seed_of(context.config.seed, Purpose.PARAMETERS))
        move_state(state, device)
        return Begun(state, reader_at(context, 0), [], RoundWindow(spec, context.round_rows))
    ref = Ref.from_json(before["checkpoint"])
    checkpoint = load_checkpoint(context.run.store, ref, device)
    reader = check_reader(context, assignment.stage, checkpoint.reader, ref.name)
    window = RoundWindow(spec, context.round_rows, rounds, checkpoint.window)
    return Begun(checkpoint.state, reader, [SnapshotRef.from_json(ref) for ref in before["snapshots"]], window)


def move_state(state: State, device: torch.device) -> None:
    """Put all of a state on a device, in place."""
    state.params = {name: group.to(device) for name, group in state.params.items()}
    state.optimizer = {
        name: {key: value.to(device) for key, value in group.items()} for name, group in state.optimizer.items()
    }
    state.targets = {name: value.to(device) for name, value in state.targets.items()}


def parameters_digest(state: State) -> str:
    """Of all that replicas of a learner must agree on: parameters and targets."""
    named = {f"{group}/{name}": value for group, params in state.params.items() for name, value in params.items()}
    named |= {f"targets/{name}": value for name, value in state.targets.items()}
    return digest(b"".join(named[name].detach().cpu().numpy().tobytes() for name in sorted(named)))


class Sync:
    """Publishes and keeps what a stage learns. For one member; a context manager, whose end waits for uploads."""

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        state: State,
        published: list[SnapshotRef],
    ) -> None:
        """Args: whose part, of which run, who is told, the state before the stage, its snapshots (none: publish)."""
        self._stage = assignment.stage
        self._context = context
        self._publisher = SnapshotPublisher(assignment, context, membership)
        self._published = published or [self._publisher.publish(0, state)]
        self._checkpoint: Ref | None = None

    def __enter__(self) -> Self:
        self._publisher.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._publisher.__exit__(kind, *rest)

    def publish(self, version: int, state: State) -> None:
        """A version for those who act; raises as `SnapshotPublisher.publish`."""
        self._published.append(self._publisher.publish(version, state))

    def keep(self, state: State, window: RoundWindow) -> None:
        """The checkpoint after the stage."""
        reader = reader_at(self._context, self._stage + 1).to_json()
        self._checkpoint = write_checkpoint(self._context.run.store, self._stage, state, reader, window.export())

    def count(self, edges: EdgeTally) -> None:
        """Add what was published for members elsewhere."""
        if crosses(self._context.policy, "sync -> act"):
            edges.add("sync -> act", self._publisher.published_bytes, self._publisher.published)

    def part(self) -> dict[str, Any]:
        """What a commit says of it: `snapshots`, `checkpoint`, `version`; and `publish_seconds`. After the end."""
        if self._checkpoint is None:
            raise RuntimeError("nothing was kept: call keep before")
        kept = self._published[-(self._context.config.schedule.lag + 1) :]
        self._context.run.store.sync([ref.name for ref in kept])
        return {
            "snapshots": [ref.to_json() for ref in kept],
            "checkpoint": self._checkpoint.to_json(),
            "version": self._context.rounds_of(self._stage).stop,
            "publish_seconds": self._publisher.publish_seconds,
        }
