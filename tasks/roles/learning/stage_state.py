"""The sync fragment: a stage's first parameters, a published version per round, and the checkpoint at the end.

The learner holds it, or the first of several learners that have the same bytes, or a parameter server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from penstock.storage.digest import digest
from penstock.tasks.data.replay.rounds import ReplayRounds
from penstock.tasks.data.snapshots.checkpoints import load_checkpoint, write_checkpoint
from penstock.tasks.data.snapshots.exchange import SnapshotPublisher
from penstock.tasks.data.snapshots.initial import start_from
from penstock.tasks.model.algorithms.contract import window_spec
from penstock.tasks.roles.learning.shard_feed import ActedRounds, check_reader
from penstock.tasks.roles.learning.window import RoundWindow, training_rows
from penstock.tasks.runtime.device import prepare_device
from penstock.tasks.runtime.results import Published
from penstock.tasks.seeds import Purpose, seed_of
from penstock.tasks.setup.config.run import TrainConfig
from penstock.tasks.setup.distribution.dataflow import crosses

if TYPE_CHECKING:
    import torch

    from penstock.storage.refs import Ref, SnapshotRef
    from penstock.storage.shards.epoch_order import ReaderState
    from penstock.tasks.roles.learning.feed import StageRounds
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.metrics import EdgeTally
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage as it begins, for a member that learns it or serves its parameters."""

    assignment: Assignment
    context: RunContext
    membership: Membership
    device: torch.device
    rounds: StageRounds
    reader: ReaderState
    """Position of the input."""
    state: State
    published: list[SnapshotRef]
    """Snapshots that the commit before names; none before the first stage."""
    window: RoundWindow | None
    """The rounds before the stage that an off-policy algorithm learns from; None: each round is learned alone."""


def begin_stage(assignment: Assignment, context: RunContext, membership: Membership) -> Stage:
    """Load the state that a stage starts from: the checkpoint of the commit before, or first parameters.

    Raises:
        CorruptObjectError: the checkpoint is damaged, or belongs to another stage; or the parameters that the run
            keeps from another one are.
        ConfigError: the algorithm's window does not fit the rounds.
    """
    device = prepare_device(assignment.device, context.config.distribution.torch_threads)
    acts, before = context.config.has_actors, context.commit_before(assignment)
    rounds: StageRounds = ActedRounds(context) if acts else ReplayRounds(context)
    reader = rounds.reader_before(assignment.stage)
    if before is None:
        state, published, kept = context.algorithm.init(seed_of(context.config.seed, Purpose.PARAMETERS)), [], {}
        if isinstance(context.config, TrainConfig) and context.config.init_from.digest is not None:
            start_from(state, context.run.store, context.config.init_from.digest)
        move_state(state, device)
    else:
        ref = before.checkpoint
        checkpoint = load_checkpoint(context.run.store, ref, device)
        check_reader(reader, assignment.stage, checkpoint.reader, ref.name)
        state, kept = checkpoint.state, checkpoint.window
        published = list(before.snapshots)
    spec = window_spec(context.algorithm) if acts else None
    window = None
    if spec:
        round_rows = training_rows(spec, context.config.schedule.round_steps, context.round_rows)
        window = RoundWindow(spec, round_rows, context.rounds_of(assignment.stage).start, kept)
    return Stage(assignment, context, membership, device, rounds, reader, state, published, window)


def move_state(state: State, device: torch.device) -> None:
    """Move all of a state to a device, in place."""
    state.params = {name: group.to(device) for name, group in state.params.items()}
    state.optimizer = {
        name: {key: value.to(device) for key, value in group.items()} for name, group in state.optimizer.items()
    }
    state.targets = {name: value.to(device) for name, value in state.targets.items()}


def parameters_digest(state: State) -> str:
    """Return the digest of everything that all learners must agree on: parameters and targets."""
    named = {f"{group}/{name}": value for group, params in state.params.items() for name, value in params.items()}
    named |= {f"targets/{name}": value for name, value in state.targets.items()}
    return digest(b"".join(named[name].detach().cpu().numpy().tobytes() for name in sorted(named)))


class Publisher:
    """Stores the parameters of a stage. For one member; a context manager, whose end waits for uploads.

    A run that acts publishes a version each round, beginning with version 0 of the run. A replay has no actors: it
    publishes only the last version of each stage.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._context = stage.context
        before = stage.published[-1] if stage.published else None
        self._snapshots = SnapshotPublisher(stage.assignment, stage.context, stage.membership, before)
        self._stop = stage.context.rounds_of(stage.assignment.stage).stop
        self._published = list(stage.published)
        self._checkpoint: Ref | None = None
        if not self._published:
            self.publish(0, stage.state)

    def __enter__(self) -> Self:
        self._snapshots.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._snapshots.__exit__(kind, *rest)

    def publish(self, version: int, state: State) -> None:
        """Publish a version for actors; raises as `SnapshotPublisher.publish`."""
        if self._context.config.has_actors or version == self._stop:
            self._published.append(self._snapshots.publish(version, state))

    def keep(self, state: State) -> None:
        """Store the checkpoint after the stage."""
        stage, window = self._stage.assignment.stage, self._stage.window
        reader = self._stage.rounds.reader_before(stage + 1).to_json()
        kept = window.export() if window else None
        self._checkpoint = write_checkpoint(self._context.run.store, stage, state, reader, kept)

    def count(self, edges: EdgeTally) -> None:
        """Add the bytes that were published for members elsewhere."""
        if crosses(self._context.policy, "sync -> act"):
            edges.add("sync -> act", self._snapshots.published_bytes, self._snapshots.published)

    @property
    def seconds(self) -> float:
        """Return the seconds spent on publishing."""
        return self._snapshots.publish_seconds

    def result(self) -> Published:
        """Return its part of a commit. Call after exit."""
        if self._checkpoint is None:
            raise RuntimeError("no checkpoint was stored: call keep() first")
        kept = self._published[-(self._context.config.schedule.lag + 1) :]
        self._context.run.store.sync([ref.name for ref in kept])
        return Published(tuple(kept), self._checkpoint, self._stop)
