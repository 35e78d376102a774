"""The client of an environment member: stands in for a local pool, and steps a tile's environments remotely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.storage.errors import GangError
from penstock.tasks.roles.stepping.protocol import StepFrame, pack_start, unpack_end
from penstock.tasks.roles.stepping.sockets import LINK_SECONDS, Link, LinkAddress, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from penstock.native import RoundEnd
    from penstock.tasks.runtime.run_context import RunContext


class RemotePool:
    """The rollout API of a pool, over a link. For one thread at a time.

    `step_round` sends actions and returns immediately; `receive_step` then waits until the environments were stepped.
    The link is open from `reset_ids` or `restore` to `close`.
    """

    def __init__(
        self,
        context: RunContext,
        tile: int,
        first_round: int,
        address: LinkAddress,
        timeout_seconds: float = LINK_SECONDS,
        check: Callable[[], None] | None = None,
        starts: Callable[[], int | None] | None = None,
    ) -> None:
        """Create the pool; sends nothing yet.

        Args:
            context: of the run.
            tile: whose environments these are.
            first_round: that will be acted; the peer serves from there to the end of the stage.
            address: where the peer listens.
            timeout_seconds: longest wait for one answer.
            check: as of `Link.wait`; with it the answer to the start is waited for longer, since environments that are
                restored by a replay take as long for it as their steps took.
            starts: the count that the peer told last, as `EnvironmentServer.serve` tells it: while it starts another
                tile, its answers are waited for longer too.
        """
        self._tile = tile
        self._first_round = first_round
        self._address = address
        self._peer = address.member
        self.timeout_seconds = timeout_seconds
        self._check = check
        self._starts = starts
        self._known_starts: int | None = None
        self._frame = StepFrame(context)
        self._observation = self._frame.observation
        self._link: Link | None = None
        self._columns: tuple[NDArray[Any], ...] = ()
        self._steps = self._next = 0
        self._end: tuple[RoundEnd, dict[str, NDArray[Any]]] | None = None
        self.sent_frames = 0

    @property
    def sent_bytes(self) -> int:
        """Return the bytes sent over the link."""
        return self._linked().sent_bytes

    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `seeds[b]` and start its first episode, which has the id 0."""
        self._open(pack_start(self._first_round, True, {"seeds": seeds}))

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a saved state, bit for bit."""
        self._open(pack_start(self._first_round, False, state))

    def begin_round(
        self,
        observation: NDArray[Any],
        reward: NDArray[np.float32],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        episode_id: NDArray[np.int32],
    ) -> None:
        """Take the buffers of a round, all `[T, B]` and `observation` `[T, B, ...]`; writes row 0 of observations."""
        self._columns = observation, reward, terminated, truncated, episode_id
        self._steps, self._next = len(reward), 0
        observation[0] = self._observation

    def step_round(self, t: int, action: NDArray[Any]) -> None:
        """Send the actions of step t: int64 `[B]`, or float32 `[B, ...]`, C-contiguous; nothing is converted.

        Raises:
            ValueError: another t is next, or type, shape or values of the actions.
            MemberLostError: the peer is gone.
        """
        expected = self._frame.action
        if t != self._next or t == self._steps:
            raise ValueError(f"step_round got t={t}, expected {self._next} of {self._steps} steps")
        if action.dtype != expected.dtype or action.shape != expected.shape:
            raise ValueError(
                f"actions: expected {expected.dtype} of shape {expected.shape}, got {action.dtype} {action.shape}"
            )
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            # The peer would refuse them too, and the run fail by its error: here the actor knows what has diverged.
            environment = int(np.argmax(~np.isfinite(action).reshape(len(action), -1).all(1)))
            raise ValueError(f"action of environment {environment} is not finite: got {action[environment]}")
        self._linked().send(action.data)
        self.sent_frames += 1

    def fileno(self) -> int:
        """Return the number of the link's socket, which is readable when a frame comes."""
        return self._linked().fileno()

    def receive_step(self) -> None:
        """Wait for the step that was sent: row t of the buffers, and row t + 1 of the observations.

        Raises:
            GangError: the peer could not step its environments; has its message.
            MemberLostError: the peer is gone, or silent for too long.
        """
        t, frame = self._next, self._frame
        last = t + 1 == self._steps
        self._receive(last=last)
        observation, reward, terminated, truncated, episode_id = self._columns
        reward[t] = frame.reward
        terminated[t] = frame.terminated
        truncated[t] = frame.truncated
        episode_id[t] = frame.episode_id
        if last:
            end, state, self._observation = unpack_end(self._linked().receive_sized(), self._peer)
            self._end = end, state
        else:
            observation[t + 1] = frame.observation
        self._next = t + 1

    def end_round(self) -> RoundEnd:
        """Return the end of the round, which is not in the buffers. All T steps must have been made."""
        self._columns = ()
        return self._ended()[0]

    def save(self) -> dict[str, NDArray[Any]]:
        """Return the environments' state after the last round, as named arrays `[B, ...]`."""
        return self._ended()[1]

    def close(self) -> None:
        """Close the link: no more steps follow."""
        if self._link is not None:
            self._link.close()

    def _open(self, start: bytes) -> None:
        self.close()
        self._link = connect(self._address, self._tile, self.timeout_seconds, self._check)
        self._link.is_excused = self._starts_another_tile
        self._link.send_sized(start)
        if self._check is not None:
            self._link.wait(self._check)
        self._receive(last=False)
        self._observation = self._frame.observation.copy()

    def _starts_another_tile(self) -> bool:
        """Return whether the peer starts a tile, or has done so since this was asked last."""
        if self._starts is None:
            return False
        if self._check is not None:
            self._check()
        before, self._known_starts = self._known_starts, self._starts()
        return self._known_starts != before or (before is not None and before % 2 == 1)

    def _receive(self, *, last: bool) -> None:
        link, frame = self._linked(), self._frame
        link.receive_into(frame.last if last else frame.whole)
        if frame.failure[0]:
            text = memoryview(bytearray(int(frame.failure[0])))
            link.receive_into(text)
            raise GangError(
                f"{self._peer} could not step the environments of tile {self._tile}: {text.tobytes().decode()}"
            )

    def _linked(self) -> Link:
        if self._link is None:
            raise RuntimeError("no environment has started: call reset_ids or restore first")
        return self._link

    def _ended(self) -> tuple[RoundEnd, dict[str, NDArray[Any]]]:
        if self._end is None or self._next != self._steps:
            raise RuntimeError(f"the round has {self._steps} steps, only {self._next} were made")
        return self._end
