"""The act role: step the tiles' environments with local inference, and store a shard and a state a round and tile.

A restarted act task resumes after the stored rounds; what it writes again has the same name and content.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from penstock.storage.runs.timings import ActTimes, CacheCounts
from penstock.storage.tensors import load_tensors
from penstock.tasks.data.snapshots.exchange import SnapshotReader
from penstock.tasks.data.snapshots.opponents import make_acting_pool
from penstock.tasks.roles.acting.resuming import find_starts
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.roles.acting.stragglers import LateTiles, due_rounds
from penstock.tasks.roles.acting.tile import TileActor, act_together
from penstock.tasks.roles.acting.torch_tile import DeviceParams, TorchTileActor
from penstock.tasks.roles.stepping.remote_pool import RemotePool
from penstock.tasks.roles.stepping.server import starts_key
from penstock.tasks.runtime.device import prepare_device
from penstock.tasks.runtime.metrics import EdgeTally, Spans
from penstock.tasks.runtime.results import ActResult
from penstock.tasks.setup.distribution.dataflow import crosses, tiles_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.storage.refs import StateRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.timings import EdgeCount
    from penstock.tasks.data.input.hand_over import HandOver
    from penstock.tasks.roles.acting.resuming import Starts
    from penstock.tasks.roles.stepping.sockets import LinkAddress
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext


@dataclass(slots=True)
class _Tally:
    """Counts an act task's work in a stage."""

    spans: Spans
    env_steps: int = 0
    act_seconds: float = 0.0
    wait_seconds: float = 0.0
    first_step_at: float = 0.0
    """Unix time; 0 before the first step."""


def act(
    assignment: Assignment,
    context: RunContext,
    membership: Membership,
    served: Mapping[int, LinkAddress] | None = None,
    hand_over: HandOver | None = None,
) -> ActResult:
    """Act all rounds of a stage that are not stored yet; with a quorum below 1, those that can still be learned from.

    Args:
        assignment: gives the stage and the tiles.
        context: of the run.
        membership: in the stage's gang.
        served: by tile, the address of the member that steps its environments; None if they are in this process.
        hand_over: to and from the learner of this process; None if that is elsewhere.

    Raises:
        StageMismatchError: a round that was acted again differs from the stored one.
    """
    # Inference on small batches gains nothing from more threads, and one keeps its bytes the same everywhere.
    torch.set_num_threads(1)
    device = prepare_device(assignment.device, 1) if context.policy.pools == "torch" else None
    on_device = DeviceParams(device) if device else None
    rounds = context.rounds_of(assignment.stage)
    tiles = tiles_of(assignment.replica, assignment.replicas, context.config.environment.tiles)
    actors, found = _resume_all(assignment, context, tiles, served, device, membership)
    resumed = {tile: actor.next_round for tile, actor in actors.items() if actor.next_round > rounds.start}
    if resumed:
        membership.log.info("resumes after stored rounds: %s", resumed)
    snapshots = SnapshotReader(assignment, context, membership, found.before, hand_over.versions if hand_over else None)
    writer = RoundWriter(
        assignment,
        context,
        membership,
        found.shards,
        found.states,
        handed=hand_over.rows if hand_over else None,
        confirm=snapshots.confirm,
    )
    late = None
    if not context.config.requires_full_round:
        late = LateTiles(assignment, context, membership, snapshots, found.shards)
    del found  # it names the stored objects of all tiles
    tally = _Tally(Spans(assignment.replica))
    try:
        for round_, due in due_rounds(rounds, actors.values(), late, membership.check):
            _act_round(due, context.acting_version(round_), snapshots, on_device, writer, tally)
        written = writer.finish()
    finally:
        snapshots.close()
        for actor in actors.values():
            actor.close()
        writer.close()
    membership.log.info(
        "acted rounds=%d..%d tiles=%d..%d env_steps=%d act_seconds=%.3f wait_seconds=%.3f",
        rounds[0],
        rounds[-1],
        tiles[0],
        tiles[-1],
        tally.env_steps,
        tally.act_seconds,
        tally.wait_seconds,
    )
    times = ActTimes(
        member=assignment.member,
        env_steps=tally.env_steps,
        act_seconds=tally.act_seconds,
        wait_seconds=tally.wait_seconds,
        first_step_at=tally.first_step_at,
        spans=tally.spans.spans(),
        cache=CacheCounts(**snapshots.tally.to_json()),
        edges=_edges(actors.values(), writer, context),
    )
    return ActResult(tuple(written[tile] for tile in tiles), writer.shard_digests(), times)


def _act_round(
    due: Sequence[TileActor],
    version: int,
    snapshots: SnapshotReader,
    on_device: DeviceParams | None,
    writer: RoundWriter,
    tally: _Tally,
) -> None:
    """Wait for a version of the parameters, and let actors act their next round with it."""
    params, waited = snapshots.get(version)
    tally.wait_seconds += waited
    tally.spans.add("wait", waited)
    params = on_device.load(params) if on_device else params
    started = time.perf_counter()
    tally.first_step_at = tally.first_step_at or time.time()
    act_together(due, version, params, writer.buffers, writer.submit)
    tally.env_steps += sum(actor.round_steps for actor in due)
    acted = time.perf_counter() - started
    tally.spans.add("act", acted)
    tally.act_seconds += acted


def _edges(actors: Iterable[TileActor], writer: RoundWriter, context: RunContext) -> dict[str, EdgeCount]:
    edges = EdgeTally()
    for pool in (actor.remote for actor in actors if actor.remote is not None):
        edges.add("act -> env", pool.sent_bytes, pool.sent_frames)
    if crosses(context.policy, "collect -> buffer"):
        edges.add("collect -> buffer", writer.made_bytes, writer.made_shards)
    return edges.counts()


def _resume_all(
    assignment: Assignment,
    context: RunContext,
    tiles: range,
    served: Mapping[int, LinkAddress] | None,
    device: torch.device | None,
    membership: Membership | None = None,
) -> tuple[dict[int, TileActor], Starts]:
    """Return the actors of all tiles, as they were stored, and the stored objects that were found.

    While environments elsewhere start, `membership` says whether the member must leave.
    """
    found = find_starts(assignment, context, tiles)
    actors: dict[int, TileActor] = {}
    try:
        for tile, start, buffer in zip(tiles, found.starts, found.buffers, strict=True):
            actors[tile] = _actor(context, tile, start, buffer, served, device, found.before, membership)
    except BaseException:
        for actor in actors.values():
            actor.close()
        raise
    return actors, found


def _actor(
    context: RunContext,
    tile: int,
    start: tuple[StateRef, int] | None,
    buffer: memoryview | None,
    served: Mapping[int, LinkAddress] | None,
    device: torch.device | None,
    before: Commit | None,
    membership: Membership | None,
) -> TileActor:
    if device is not None:
        actor: TileActor = TorchTileActor(context, tile, device)
    elif served:
        first_round = start[1] if start else 0
        actor = TileActor(context, tile, _remote_pool(context, tile, first_round, served[tile], membership))
    else:
        actor = TileActor(context, tile, make_acting_pool(context, tile, before))
    if start is None or buffer is None:
        actor.start()
        return actor
    ref, next_round = start
    if context.resets_each_stage and next_round % context.config.schedule.rounds_per_stage == 0:
        actor.restart(next_round, ref.round)
        return actor
    tensors, _ = load_tensors(buffer, ref.name, ref.digest)
    actor.restore(tensors, next_round, ref.round)
    return actor


def _remote_pool(
    context: RunContext, tile: int, first_round: int, address: LinkAddress, membership: Membership | None
) -> RemotePool:
    if membership is None:
        return RemotePool(context, tile, first_round, address)
    starts = partial(membership.latest, starts_key(address.member))
    return RemotePool(context, tile, first_round, address, check=membership.check, starts=starts)
