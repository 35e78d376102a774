"""The environment member: steps the environments of tiles for actors in other processes.

An environment member has no state that matters: the actor sends a tile's start, and gets a round's state with the
round. So an actor that reconnects starts again from the stored state.
"""

from __future__ import annotations

import logging
import selectors
import time
from functools import partial
from typing import TYPE_CHECKING, Self

import torch

from penstock.storage.errors import MemberLostError
from penstock.storage.runs.timings import EdgeCount, EnvTimes
from penstock.storage.shards.codec import allocate
from penstock.tasks.data.snapshots.opponents import make_acting_pool
from penstock.tasks.roles.stepping.protocol import ROUND_COLUMNS, StepFrame, pack_end, unpack_start
from penstock.tasks.roles.stepping.sockets import LINK_SECONDS, Link, LinkAddress, Listener, PendingConnection
from penstock.tasks.runtime.results import EnvResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Advertisement, Membership
    from penstock.tasks.runtime.run_context import RunContext

logger = logging.getLogger(__name__)

ENVIRONMENTS = "environments"
"""Name under which an environment member advertises its address and its tiles."""

_CHECK_SECONDS = 0.25
_TELL_SECONDS = 10.0


def starts_key(member: str) -> str:
    """Return the key under which an environment member notifies actors of its `EnvironmentServer.serve` count."""
    return f"starts of {member}"


def env(assignment: Assignment, server: EnvironmentServer, membership: Membership) -> EnvResult:
    """Step a stage's environments until all rounds are acted."""
    # The other side of a game is played here, by inference: one thread keeps its bytes the same everywhere.
    torch.set_num_threads(1)
    server.serve(membership.check, partial(membership.notify, "act", starts_key(assignment.member)))
    times = server.times(assignment.member)
    membership.log.info(
        "stepped stage=%d env_steps=%d step_seconds=%.3f", assignment.stage, times.env_steps, times.step_seconds
    )
    return EnvResult(times)


def served_tiles(membership: Membership) -> dict[int, LinkAddress]:
    """Return by tile the address of the member that steps its environments."""
    return {
        tile: LinkAddress.from_json(served["address"])
        for served in membership.advertisements(ENVIRONMENTS).values()
        for tile in served["tiles"]
    }


class TileServer:
    """A tile's environments, and the link over which they are stepped. Not thread-safe."""

    def __init__(self, context: RunContext, tile: int, last_round: int, before: Commit | None) -> None:
        columns = context.columns
        steps, envs = context.config.schedule.round_steps, context.config.environment.envs_per_tile
        arrays = allocate({name: columns[name] for name in ROUND_COLUMNS}, steps, envs)
        self._observation, self._reward, self._terminated, self._truncated, self._episode_id = self._columns = [
            arrays[name] for name in ROUND_COLUMNS
        ]
        self._frame = StepFrame(context)
        self._action_bytes = self._frame.action.data.cast("B")
        self._pool = make_acting_pool(context, tile, before)
        self._last_round = last_round
        self._steps = steps
        self._next_round = self._next_step = 0
        self.link: Link | None = None
        self.over = False
        """True once the tile was stepped to the end of the stage."""
        self.steps = self.sent_frames = self.sent_bytes = self.observation_bytes = 0
        self.step_seconds = 0.0

    def begin(self, link: Link) -> None:
        """Start as the peer requests, and send the first observation."""
        self.close()
        self.link = link
        first_round, seeded, tensors = unpack_start(link.receive_sized(), link.peer)
        try:
            if seeded:
                self._pool.reset_ids(tensors["seeds"])
            else:
                self._pool.restore(tensors)
            self._pool.begin_round(*self._columns)
        except Exception as error:
            self._send_error(link, error, self._frame.whole)
            raise
        self._next_round, self._next_step = first_round, 0
        self.over = first_round > self._last_round
        self._frame.observation[:] = self._observation[0]
        self._send(link, self._frame.whole)

    def step(self) -> None:
        """Receive actions, step the environments, and send what followed."""
        link, frame, t = self.link, self._frame, self._next_step
        if link is None:
            raise RuntimeError("no actor is linked to this tile")
        link.receive_into(self._action_bytes)
        last = t + 1 == self._steps
        started = time.perf_counter()
        try:
            self._pool.step_round(t, frame.action)
        except Exception as error:
            self._send_error(link, error, frame.last if last else frame.whole)
            raise
        self.step_seconds += time.perf_counter() - started
        self.steps += len(frame.reward)
        frame.reward[:] = self._reward[t]
        frame.terminated[:] = self._terminated[t]
        frame.truncated[:] = self._truncated[t]
        frame.episode_id[:] = self._episode_id[t]
        if not last:
            frame.observation[:] = self._observation[t + 1]
            self._send(link, frame.whole)
            self._next_step = t + 1
            return
        self._send(link, frame.last)
        end, state = self._pool.end_round(), self._pool.save()
        self._pool.begin_round(*self._columns)
        link.send_sized(pack_end(end, state, self._observation[0]))
        self.over = self._next_round == self._last_round
        self._next_round, self._next_step = self._next_round + 1, 0

    def close(self) -> None:
        """Close the link."""
        if self.link is not None:
            self.sent_bytes += self.link.sent_bytes
            self.link.close()
            self.link = None

    def end(self) -> None:
        """Close the link and the environments."""
        self.close()
        self._pool.close()

    def _send(self, link: Link, frame: memoryview) -> None:
        link.send(frame)
        self.sent_frames += 1
        self.observation_bytes += self._frame.observation.nbytes if frame is self._frame.whole else 0

    def _send_error(self, link: Link, error: Exception, frame: memoryview) -> None:
        """Send the peer the error of its environments; without it the peer would only see that the link was closed."""
        text = f"{type(error).__name__}: {error}".encode()
        self._frame.failure[0] = len(text)
        try:
            link.send(frame)
            link.send(text)
        except MemberLostError as lost:
            logger.debug("could not send the environments' error to the peer error=%s", lost)


class EnvironmentServer:
    """Serves tiles to actors that have the token, one link a tile, from one thread. A context manager.

    Attributes:
        address: where it listens.
    """

    def __init__(
        self,
        context: RunContext,
        tiles: Iterable[int],
        last_round: int,
        host: str,
        member: str,
        before: Commit | None = None,
    ) -> None:
        self._tiles: dict[int, TileServer] = {}
        self._starts = 0
        # Other starts are fast: they need no message.
        self._tells = context.resets_each_stage
        self._tell: Callable[[int], None] = lambda _: None
        try:
            for tile in tiles:
                self._tiles[tile] = TileServer(context, tile, last_round, before)
            self._listener = Listener(host, member)
        except BaseException:
            self._end_tiles()
            raise
        self._selector = selectors.DefaultSelector()
        self._pending: set[PendingConnection] = set()
        self._selector.register(self._listener, selectors.EVENT_READ, self._knock)
        self.address = self._listener.address

    def advertisement(self) -> Advertisement:
        """Return the advertisement for other members."""
        return {ENVIRONMENTS: {"address": self.address.to_json(), "tiles": list(self._tiles)}}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all links and environments."""
        self._selector.close()
        self._listener.close()
        for connection in self._pending:
            connection.close()
        self._end_tiles()

    def _end_tiles(self) -> None:
        for tile in self._tiles.values():
            tile.end()

    def serve(self, check: Callable[[], None], tell: Callable[[int], None] | None = None) -> None:
        """Serve until every tile was stepped to the end of the stage.

        Args:
            check: called several times a second; raises when the member must leave.
            tell: called when a tile's start begins and ends, with a count that is odd meanwhile: no tile is served
                then, and environments that can't save their state are restored by repeating up to a stage's steps.
                Called again with the same count every ten seconds.
        """
        if tell is not None and self._tells:
            self._tell = tell
        check_at, tell_at = 0.0, time.monotonic() + _TELL_SECONDS
        while not all(tile.over for tile in self._tiles.values()):
            for key, _ in self._selector.select(_CHECK_SECONDS):
                key.data()
            if time.monotonic() >= check_at:
                check()
                check_at = time.monotonic() + _CHECK_SECONDS
            if time.monotonic() >= tell_at:  # what is told may be lost
                self._tell(self._starts)
                tell_at = time.monotonic() + _TELL_SECONDS

    def times(self, member: str) -> EnvTimes:
        """Return what was done so far, for the timings of a member."""
        tiles = self._tiles.values()
        sent = sum(tile.sent_bytes + (tile.link.sent_bytes if tile.link else 0) for tile in tiles)
        observations = sum(tile.observation_bytes for tile in tiles)
        frames = sum(tile.sent_frames for tile in tiles)
        return EnvTimes(
            member=member,
            env_steps=sum(tile.steps for tile in tiles),
            step_seconds=sum(tile.step_seconds for tile in tiles),
            # One message serves both edges: its observation is for the actor, all else for its shards.
            edges={
                "env -> act": EdgeCount(observations, frames),
                "env -> collect": EdgeCount(sent - observations, frames),
            },
        )

    def _knock(self) -> None:
        connection = self._listener.accept()
        if connection is not None:
            self._pending.add(connection)
            self._selector.register(connection, selectors.EVENT_READ, partial(self._greet, connection))

    def _greet(self, connection: PendingConnection) -> None:
        try:
            greeted = connection.read("actor", LINK_SECONDS)
        except (PermissionError, MemberLostError) as error:
            logger.warning("%s", error)
            self._forget(connection)
            return
        if greeted is None:
            return
        self._forget(connection)
        link, number = greeted
        if number not in self._tiles:
            link.close()
            raise ValueError(f"an actor requested tile {number}, expected one of {sorted(self._tiles)}")
        tile = self._tiles[number]
        link.peer = f"actor of tile {number}"
        self._part(tile)
        self._count_start()
        try:
            tile.begin(link)
        except MemberLostError as error:
            logger.warning("%s", error)
            tile.close()
            return
        finally:
            self._count_start()
        self._selector.register(link, selectors.EVENT_READ, partial(self._step, tile, link))

    def _count_start(self) -> None:
        self._starts += 1
        self._tell(self._starts)

    def _forget(self, connection: PendingConnection) -> None:
        self._pending.discard(connection)
        self._selector.unregister(connection)

    def _step(self, tile: TileServer, link: Link) -> None:
        if tile.link is not link:  # another link has just replaced it
            return
        try:
            tile.step()
        except MemberLostError as error:
            logger.info("%s", error)
            self._part(tile)
        if tile.over:
            self._part(tile)

    def _part(self, tile: TileServer) -> None:
        if tile.link is not None:
            self._selector.unregister(tile.link)
            tile.close()
