"""Members of a simulated gang: the real protocol of actors and learners around payloads that are only digests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError, LeaseLostError, MemberStoppedError
from penstock.storage.refs import Ref, checkpoint_name
from penstock.storage.runs.commits import read_commit
from penstock.storage.runs.lease import LeaseWatcher
from penstock.storage.runs.timings import ActTimes, LearnTimes
from penstock.tasks.data.snapshots.exchange import SnapshotPublisher, SnapshotReader
from penstock.tasks.roles.acting.resuming import find_starts
from penstock.tasks.roles.acting.round_storage import RoundStorage
from penstock.tasks.roles.acting.stragglers import LateTiles, due_rounds
from penstock.tasks.roles.learning.round_choice import RoundChoices
from penstock.tasks.roles.learning.shard_finder import ShardFinder
from penstock.tasks.runtime.results import ActResult, LearnResult, MemberResult, Published
from penstock.tasks.runtime.waiting import wait_for_object
from penstock.tasks.setup.distribution.dataflow import tiles_of
from penstock.tasks.simulation import payloads
from penstock.tasks.simulation.memory import check_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.storage.refs import ShardRef, SnapshotRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.mailbox import Mailbox
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.setup.distribution.settings import Fragment
    from penstock.tasks.simulation.world import World

_ACT_SECONDS = 0.3
_LEARN_SECONDS = 0.1
_SILENT = logging.Logger("penstock.simulation", logging.CRITICAL)  # noqa: LOG001  (of no one but the members)


class SimulatedMembership:
    """A membership whose notifications travel through the simulated network; see `runtime.membership.Membership`."""

    def __init__(
        self,
        world: World,
        assignment: Assignment,
        context: RunContext,
        mailbox: Mailbox,
        send: Callable[[str, int | None, Mapping[str, Any]], None],
    ) -> None:
        self.assignment = assignment
        self.log = _SILENT
        self._world = world
        self._mailbox = mailbox
        self._roles = {fragment: role.name for role in context.policy.roles for fragment in role.fragments}
        self._send = send
        self._topic = assignment.topic
        self._failure: BaseException | None = None
        self._watcher = LeaseWatcher(context.run.store, assignment.generation)
        mailbox.open(self._topic)
        self._watcher.start()

    def notify(self, fragment: Fragment, key: str, value: Any, replica: int | None = None) -> None:
        """Send an entry to the members that hold a fragment."""
        self._send(self._roles[fragment], replica, {key: value})

    def share(self, key: str, value: Any) -> None:
        """Post an entry for this process."""
        self._mailbox.post(self._topic, {key: value})

    def latest(self, key: str) -> Any:
        """Return the latest entry of that key."""
        return self._mailbox.get(self._topic, key)

    def wait_notification(self, ready: Callable[[Mapping[str, Any]], bool], timeout_seconds: float) -> bool:
        """Wait for entries."""
        return self._mailbox.wait(self._topic, ready, timeout_seconds)

    def wake(self) -> None:
        """Make waiting threads look again."""
        self._mailbox.post(self._topic, {})

    def fail(self, error: BaseException) -> None:
        """Let `check` raise an error of another thread."""
        self._failure = self._failure or error
        self.wake()

    def check(self) -> None:
        """Raise if the member must leave."""
        if self._failure is not None:
            raise self._failure
        reason = self.latest("leave")
        if reason is not None:
            raise MemberStoppedError(f"{self.assignment.member} leaves stage {self.assignment.stage}: {reason}")
        if self._watcher.lost:
            raise LeaseLostError(f"{self.assignment.member} leaves: {self._watcher.reason}")

    def wait(self, notified: Callable[[Any], bool], poll: Callable[[], bool], *, of_all: str | None = None) -> float:
        """Wait for a notification or a poll of storage."""
        replicas = self.assignment.replicas
        return wait_for_object(self._mailbox, self._topic, notified, poll, self.check, replicas, of_all=of_all)


class _Tile:
    """The environments of a tile."""

    def __init__(self, tile: int, state: str, next_round: int) -> None:
        self.tile = tile
        self.state = state
        self.next_round = next_round


def run_member(world: World, assignment: Assignment, context: RunContext, members: SimulatedMembership) -> MemberResult:
    """Run a member; raises as the real ones do."""
    membership = cast("Membership", members)
    if assignment.role == context.policy.role_of("act").name:
        result: ActResult | LearnResult = _act(world, assignment, context, membership)
    else:
        result = _learn(world, assignment, context, membership)
    return MemberResult(assignment.member, "", (result,))


def _act(world: World, assignment: Assignment, context: RunContext, membership: Membership) -> ActResult:
    rounds = context.rounds_of(assignment.stage)
    tiles = tiles_of(assignment.replica, assignment.replicas, context.config.environment.tiles)
    found = find_starts(assignment, context, tiles)
    actors = []
    for tile, start, buffer in zip(tiles, found.starts, found.buffers, strict=True):
        if start is None or buffer is None:
            actors.append(_Tile(tile, payloads.first_state(tile), rounds.start))
        else:
            check_once(buffer, start[0], context.run.store.url)
            actors.append(_Tile(tile, digest(buffer), start[1]))
    snapshots = SnapshotReader(assignment, context, membership, found.before)
    storage = RoundStorage(assignment, context, membership, found.shards, found.states)
    late = None
    if not context.config.requires_full_round:
        late = LateTiles(assignment, context, membership, snapshots, found.shards)
    try:
        for round_, due in due_rounds(rounds, actors, late, membership.check):
            ref, content, _ = snapshots.find(context.acting_version(round_))
            check_once(content, ref, context.run.store.url)
            params = payloads.params_of(content)
            world.sleep(world.rng.random() * _ACT_SECONDS)
            for actor in due:
                _act_round(storage, assignment.stage, actor, params)
        written = storage.finish()
    finally:
        snapshots.close()
        storage.close()
    return ActResult(tuple(written[tile] for tile in tiles), storage.shard_digests(), _ACT_TIMES)


def _act_round(storage: RoundStorage, stage: int, actor: _Tile, params: str) -> None:
    round_ = actor.next_round
    content, data = payloads.shard_file(stage, round_, actor.tile, actor.state, params)
    state = payloads.state_file(round_, actor.tile, actor.state, params)
    shard = storage.shard_ref(round_, actor.tile, content, len(data), payloads.ROWS)
    storage.add(shard, [memoryview(data)], lambda: state, len(state), lambda: None)
    actor.state, actor.next_round = digest(state), round_ + 1


def _learn(world: World, assignment: Assignment, context: RunContext, membership: Membership) -> LearnResult:
    store, before = context.run.store, _commit_before(context, assignment)
    published: list[SnapshotRef] = list(before.snapshots) if before else []
    params = payloads.first_params()
    if before is not None:
        content = store.view(before.checkpoint.name)
        check_once(content, before.checkpoint, store.url)
        params = payloads.params_of(content)
    shards: list[ShardRef] = []
    with SnapshotPublisher(assignment, context, membership, published[-1] if published else None) as publisher:
        if not published:
            published.append(publisher.publish_encoded(0, payloads.snapshot_file(0, params)))
        for round_, refs in _rounds(assignment, context, membership):
            membership.check()
            world.sleep(world.rng.random() * _LEARN_SECONDS)
            params = payloads.learned_params(params, (ref.digest for ref in refs))
            shards += refs
            published.append(publisher.publish_encoded(round_ + 1, payloads.snapshot_file(round_ + 1, params)))
        data = payloads.checkpoint_file(assignment.stage, params)
        checkpoint = Ref(checkpoint_name(assignment.stage, digest(data)), digest(data), len(data))
        store.write(checkpoint.name, [data], durable=True)
    kept = published[-(context.config.schedule.lag + 1) :]
    store.sync([ref.name for ref in kept])
    return LearnResult(
        shards=tuple(shards),
        outputs={},
        episodes=0,
        return_sum=0.0,
        length_sum=0,
        parameters=params,
        published=Published(tuple(kept), checkpoint, context.rounds_of(assignment.stage).stop),
        times=LearnTimes(member="", env_steps=len(shards) * payloads.ROWS, learn_seconds=0.0, wait_seconds=0.0),
    )


def _rounds(
    assignment: Assignment, context: RunContext, membership: Membership
) -> Iterator[tuple[int, list[ShardRef]]]:
    """Yield rounds with the shards that they are learned from, each read and checked."""
    finder = ShardFinder(assignment, context, membership)
    choices = None
    if not context.config.requires_full_round:
        choices = RoundChoices(assignment, context, membership, finder.known)
    for round_ in context.rounds_of(assignment.stage):
        if choices is None:
            found = [finder.find(round_, tile) for tile in range(context.config.environment.tiles)]
        else:
            choices.want(round_)
            found = [(ref, None) for ref in choices.choose(round_)]
        yield round_, [_read(context, ref, cached) for ref, cached in found]


def _read(context: RunContext, ref: ShardRef, cached: memoryview | None) -> ShardRef:
    """Read a shard as the input pipeline does, which removes a damaged one; returns its reference with its size."""
    store = context.run.store
    content = cached if cached is not None else context.cache.get_buffer(store, ref)
    try:
        check_once(content, ref)
    except CorruptObjectError:
        store.delete([ref.name])
        raise
    return type(ref)(ref.name, ref.digest, len(content), ref.round, ref.tile, payloads.ROWS)


def _commit_before(context: RunContext, assignment: Assignment) -> Commit | None:
    if assignment.before is None:
        return None
    return read_commit(context.cache, context.run.store, Ref.from_json(assignment.before))


_ACT_TIMES = ActTimes(member="", env_steps=0, act_seconds=0.0, wait_seconds=0.0)
