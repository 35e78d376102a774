"""The environment half: step the environments of tiles for whoever acts them in another process.

An environment member keeps nothing that matters: where a tile begins is said by who acts it, and a round's state goes
back with the round. So whoever comes back after a break begins again from what is stored.
"""

from __future__ import annotations

import logging
import selectors
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from storage.errors import MemberLostError
from storage.shards import allocate
from tasks.links import LINK_SECONDS, Link, LinkAddress, Listener, Newcomer
from tasks.step_frames import ROUND_COLUMNS, StepFrame, pack_end, unpack_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership

logger = logging.getLogger(__name__)

OFFER = "environments"
"""Under which an environment member tells the others where it listens, and for which tiles."""

_CHECK_SECONDS = 0.25


def env(assignment: Assignment, server: EnvironmentServer, membership: Membership) -> dict[str, Any]:
    """Step a stage's environments until all rounds are acted.

    Returns:
        For `timings/`: `env_steps` made, `step_seconds` (in the environments), and `edges` (bytes and messages).
    """
    server.serve(membership.check)
    tally = server.tally()
    membership.log.info(
        "stepped stage=%d env_steps=%d step_seconds=%.3f", assignment.stage, tally["env_steps"], tally["step_seconds"]
    )
    return tally


def served_tiles(membership: Membership) -> dict[int, LinkAddress]:
    """By tile, the member that steps its environments."""
    return {
        tile: LinkAddress.from_json(offer["address"])
        for offer in membership.offers(OFFER).values()
        for tile in offer["tiles"]
    }


class TileServer:
    """A tile's environments, and the link over which they are stepped. Not thread-safe."""

    def __init__(self, context: RunContext, last_round: int) -> None:
        columns = context.columns
        steps, envs = context.config.schedule.round_steps, context.config.environment.envs_per_tile
        arrays = allocate({name: columns[name] for name in ROUND_COLUMNS}, steps, envs)
        self._observation, self._reward, self._terminated, self._truncated, self._episode_id = self._columns = [
            arrays[name] for name in ROUND_COLUMNS
        ]
        self._frame = StepFrame(context)
        self._action_bytes = self._frame.action.data.cast("B")
        self._pool = context.make_pool(envs)
        self._last_round = last_round
        self._steps = steps
        self._next_round = self._next_step = 0
        self.link: Link | None = None
        self.over = False
        """Whether the tile was stepped to the end of the stage."""
        self.steps = self.sent_frames = self.sent_bytes = self.observation_bytes = 0
        self.step_seconds = 0.0

    def begin(self, link: Link) -> None:
        """Begin where the peer says, and show it what the environments show."""
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
            self._confess(link, error, self._frame.whole)
            raise
        self._next_round, self._next_step = first_round, 0
        self.over = first_round > self._last_round
        self._frame.observation[:] = self._observation[0]
        self._send(link, self._frame.whole)

    def step(self) -> None:
        """Receive actions, step the environments, and send what followed."""
        link, frame, t = self.link, self._frame, self._next_step
        if link is None:
            raise RuntimeError("nobody is linked to this tile")
        link.receive_into(self._action_bytes)
        last = t + 1 == self._steps
        started = time.perf_counter()
        try:
            self._pool.step_round(t, frame.action)
        except Exception as error:
            self._confess(link, error, frame.last if last else frame.whole)
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
        """Let the peer go."""
        if self.link is not None:
            self.sent_bytes += self.link.sent_bytes
            self.link.close()
            self.link = None

    def _send(self, link: Link, frame: memoryview) -> None:
        link.send(frame)
        self.sent_frames += 1
        self.observation_bytes += self._frame.observation.nbytes if frame is self._frame.whole else 0

    def _confess(self, link: Link, error: Exception, frame: memoryview) -> None:
        """Tell the peer why no step follows: it would otherwise only see that the link ended."""
        text = f"{type(error).__name__}: {error}".encode()
        self._frame.failure[0] = len(text)
        try:
            link.send(frame)
            link.send(text)
        except MemberLostError as lost:
            logger.debug("nobody heard why the environments failed error=%s", lost)


class EnvironmentServer:
    """Serves tiles to whoever has the token, one link a tile, from one thread. A context manager.

    Attributes:
        address: where it listens.
    """

    def __init__(self, context: RunContext, tiles: Iterable[int], last_round: int, host: str, member: str) -> None:
        self._tiles = {tile: TileServer(context, last_round) for tile in tiles}
        self._listener = Listener(host, member)
        self._selector = selectors.DefaultSelector()
        self._newcomers: set[Newcomer] = set()
        self._selector.register(self._listener, selectors.EVENT_READ, self._knock)
        self.address = self._listener.address

    def offer(self) -> dict[str, Any]:
        """For the other members, before they begin."""
        return {OFFER: {"address": self.address.to_json(), "tiles": list(self._tiles)}}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let everybody go who is linked."""
        self._selector.close()
        self._listener.close()
        for newcomer in self._newcomers:
            newcomer.close()
        for tile in self._tiles.values():
            tile.close()

    def serve(self, check: Callable[[], None]) -> None:
        """Serve until every tile was stepped to the end of the stage.

        Args:
            check: called several times a second; raises when it is time to leave.
        """
        check_at = 0.0
        while not all(tile.over for tile in self._tiles.values()):
            for key, _ in self._selector.select(_CHECK_SECONDS):
                key.data()
            if time.monotonic() >= check_at:
                check()
                check_at = time.monotonic() + _CHECK_SECONDS

    def tally(self) -> dict[str, Any]:
        """What was done so far: `env_steps`, `step_seconds`, and bytes and messages by edge."""
        tiles = self._tiles.values()
        sent = sum(tile.sent_bytes + (tile.link.sent_bytes if tile.link else 0) for tile in tiles)
        observations = sum(tile.observation_bytes for tile in tiles)
        frames = sum(tile.sent_frames for tile in tiles)
        return {
            "env_steps": sum(tile.steps for tile in tiles),
            "step_seconds": sum(tile.step_seconds for tile in tiles),
            # One message serves both edges: its observation is for who acts, all else for who collects.
            "edges": {
                "env -> act": {"bytes": observations, "rounds": frames},
                "env -> collect": {"bytes": sent - observations, "rounds": frames},
            },
        }

    def _knock(self) -> None:
        newcomer = self._listener.accept()
        if newcomer is not None:
            self._newcomers.add(newcomer)
            self._selector.register(newcomer, selectors.EVENT_READ, partial(self._greet, newcomer))

    def _greet(self, newcomer: Newcomer) -> None:
        try:
            greeted = newcomer.read("who acts", LINK_SECONDS)
        except (PermissionError, MemberLostError) as error:
            logger.warning("%s", error)
            self._forget(newcomer)
            return
        if greeted is None:
            return
        self._forget(newcomer)
        link, number = greeted
        if number not in self._tiles:
            link.close()
            raise ValueError(f"somebody wants to act tile {number}; here are {sorted(self._tiles)}")
        tile = self._tiles[number]
        link.peer = f"who acts tile {number}"
        self._part(tile)
        try:
            tile.begin(link)
        except MemberLostError as error:
            logger.warning("%s", error)
            tile.close()
            return
        self._selector.register(link, selectors.EVENT_READ, partial(self._step, tile, link))

    def _forget(self, newcomer: Newcomer) -> None:
        self._newcomers.discard(newcomer)
        self._selector.unregister(newcomer)

    def _step(self, tile: TileServer, link: Link) -> None:
        if tile.link is not link:  # another one has just taken its place
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
