"""A vector environment behind a socket that survives its server: what is lost is played again, and compared.

An episode is a function of its seed and its actions: the client chooses a seed for every episode, and keeps the actions
of those that are under way. After a lost connection it makes new environments, gives them the same seeds and actions,
and compares observations and returns before it goes on.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.one_array import PLAIN, Encoding
from penstock.native.pool.arguments import masked_reset
from penstock.native.sockets import wire
from penstock.native.sockets.client import RefusedError, connect
from penstock.native.sockets.observing import Observing
from penstock.native.sockets.rows import MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.interface import Infos
    from penstock.native.sockets.client import Connection, Request

LOSSES = 3
"""Times that one request may be interrupted before it is given up: the request itself may end the server."""

logger = logging.getLogger(__name__)


def episode_seed(seed: int, episode: int) -> int:
    """Return the seed of an environment's episode: its own seed for the first, a function of both for the others."""
    if episode == 0:
        return seed
    text = seed.to_bytes(8, "little") + episode.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class SocketVector(VectorEnv[Any, Any, Any]):
    """Environments of one connection, in Gymnasium's next-step or same-step mode."""

    reset_options = frozenset({"reset_mask"})
    """The options that `reset` takes; a pool refuses others before it changes anything."""

    def __init__(
        self, request: Request, connection: Connection, mode: AutoresetMode, encoding: Encoding = PLAIN
    ) -> None:
        self._request, self._connection = request, connection
        self._agreement = connection.agreement
        self._same_step = mode == AutoresetMode.SAME_STEP
        count = self.num_envs = request.num_envs
        self.metadata = {"autoreset_mode": mode, "render_modes": []}
        self._observing = Observing(self._agreement, count, encoding)
        self.single_observation_space, self.observation_space = self._observing.space, self._observing.batch
        self.single_action_space = self._agreement.action_space
        self.action_space = batch_space(self.single_action_space, count)
        self._rows, self._action_rows = self._agreement.observations, self._agreement.actions
        self._seeds: list[int | None] = [None] * count
        self._episode = np.zeros(count, dtype=np.int64)
        self._seed_now = np.zeros(count, dtype=np.uint64)
        self._next_seed = np.zeros(count, dtype=np.uint64)
        self._length = np.zeros(count, dtype=np.int64)
        self._return = np.zeros(count, dtype=np.float64)
        self._shown = np.zeros(count, dtype=self._rows.dtype)
        """Rows of the episodes under way, which new environments must show after the same actions."""
        self._played: list[NDArray[Any]] = []
        """Rows of actions of the last steps, as far back as the longest episode under way goes."""
        self._over = np.zeros(count, dtype=np.bool_)
        self._begun = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Start episodes; without a seed an environment goes on with the seeds of its latest one.

        Raises:
            RuntimeError: The server is lost, or fails.
        """
        chosen, seeds = masked_reset(seed, options, self.num_envs, has_begun=self._begun)
        for env in np.flatnonzero(chosen).tolist():
            given = seeds[env]
            if given is not None:
                self._seeds[env], self._episode[env] = given, 0
            elif self._seeds[env] is None:
                self._seeds[env], self._episode[env] = secrets.randbits(63), 0
            else:
                self._episode[env] += 1
        given_now = np.array([self._seed_of(env, 0) for env in range(self.num_envs)], dtype=np.uint64)
        seed_now = np.where(chosen, given_now, self._seed_now)
        if chosen.all():
            self._begun = False  # nothing under way is worth playing again
            self._played.clear()
        shown = self._persistently(lambda: self._asked_reset(seed_now, chosen))
        self._begin(chosen, shown)
        self._over &= ~chosen
        self._begun = True
        return self._observing(self._shown), {}

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step; in same-step mode `final_obs` has the last observations of the episodes that ended.

        Raises:
            RuntimeError: The server is lost, fails, or plays otherwise than before.
        """
        given = np.zeros(self.num_envs, dtype=self._action_rows.dtype)
        self._action_rows.write(given, slice(None), actions)
        moving = ~self._over
        answer = self._persistently(lambda: self._asked_step(given, moving))
        reward, terminated, truncated, shown, final = answer
        self._played.append(given)
        self._length += moving
        self._return += reward
        over = terminated | truncated
        infos: Infos = {}
        seen = shown
        if over.any():
            if self._same_step:
                rows = np.full(self.num_envs, None, dtype=object)
                for row, env in enumerate(np.flatnonzero(over).tolist()):
                    rows[env] = self._observing.of_one(final[row])
                infos = {"final_obs": rows, "_final_obs": over.copy()}
            else:
                seen = shown.copy()
                seen[over] = final
            self._episode += over
        self._begin(over, shown)
        self._over = np.zeros_like(over) if self._same_step else over
        return self._observing(seen), reward, terminated, truncated, infos

    @property
    def allowed(self) -> NDArray[np.uint8] | None:
        """Return the masks `[N, choices]` of what was reset and stepped last, if they were asked for; a copy."""
        return np.array(self._shown[MASK]) if self._rows.choices else None

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  (Gymnasium's signature)
        """End the connection."""
        self._connection.close()

    def _begin(self, chosen: NDArray[np.bool_], shown: NDArray[Any]) -> None:
        """Count the episodes that begin with these observations, and forget the steps that no episode needs."""
        self._shown = shown
        for env in np.flatnonzero(chosen).tolist():
            self._seed_now[env], self._next_seed[env] = self._seed_of(env, 0), self._seed_of(env, 1)
        self._length[chosen], self._return[chosen] = 0, 0.0
        spare = len(self._played) - int(self._length.max())
        if spare > 0:
            del self._played[:spare]

    def _seed_of(self, env: int, later: int) -> int:
        seed = self._seeds[env]
        return 0 if seed is None else episode_seed(seed, int(self._episode[env]) + later)

    def _persistently(self, ask: Callable[[], Any]) -> Any:
        """Make a request; after a loss, in new environments that have been brought to where the lost ones were."""
        for losses in range(LOSSES + 1):
            try:
                if losses:
                    self._recover()
                return ask()
            except wire.WireError as error:
                if losses == LOSSES:
                    raise RuntimeError(
                        f"the environments at {self._request.where} were lost {LOSSES + 1} times in one request, the "
                        f"last time since {error}; see the server's log, then resume"
                    ) from error
                logger.warning("environments at %s are lost, connecting again: %s", self._connection.address, error)
        raise AssertionError

    def _recover(self) -> None:
        self._connection.close()
        try:
            self._connection = connect(self._request, self._request.reconnect_seconds, self._agreement.version)
        except wire.WireError as error:
            raise RuntimeError(f"{error}; start the server again, then resume") from error
        found, expected = self._connection.agreement.compared, self._agreement.compared
        if found != expected:
            raise RuntimeError(
                f"the server at {self._connection.address} describes another environment than before: {found}, "
                f"expected {expected}; start the same one"
            )
        if not self._begun:
            return
        everyone = np.ones(self.num_envs, dtype=np.bool_)
        shown = self._asked_reset(self._seed_now, everyone)
        total = np.zeros(self.num_envs)
        steps = len(self._played)
        for index, action in enumerate(self._played):
            moving = self._length >= steps - index
            reward, terminated, truncated, shown, _ = self._asked_step(action, moving)
            total += reward
            if (ended := np.flatnonzero(terminated | truncated)).size:
                raise self._otherwise(int(ended[0]), f"ended after {index + 1} steps")
        same = _same(total, self._return)
        for field in self._rows.dtype.names:
            same &= _same(shown[field], self._shown[field]).reshape(self.num_envs, -1).all(1)
        if not same.all():
            raise self._otherwise(int(np.flatnonzero(~same)[0]), "has other observations or rewards")
        logger.warning("environments at %s continue after the same seeds and %d steps", self._connection.address, steps)

    def _otherwise(self, env: int, what: str) -> RuntimeError:
        return RuntimeError(
            f"{self._request.name} at {self._connection.address}: after the connection was lost, environment {env} was "
            f"given the same seed and actions and {what}: it depends on more than these (a clock, a generator that "
            f"reset(seed) does not set), so nothing can go on from there"
        )

    def _asked_reset(self, seeds: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> NDArray[Any]:
        size = self._shown.nbytes
        body = self._connection.ask(wire.RESET, wire.OBSERVED, size, seeds.tobytes(), chosen.astype(np.uint8).tobytes())
        if len(body) != size:
            raise RefusedError(f"the server at {self._connection.address} sent {len(body)} bytes, expected {size}")
        return self._read(body, 0, self.num_envs)

    def _asked_step(self, actions: NDArray[Any], moving: NDArray[np.bool_]) -> tuple[Any, ...]:
        """Return reward, terminated, truncated, observations and the final ones of the episodes that ended."""
        count, row = self.num_envs, self._shown.nbytes // self.num_envs
        parts = (self._next_seed.tobytes(), actions.tobytes(), moving.astype(np.uint8).tobytes())
        body = self._connection.ask(wire.STEP, wire.STEPPED, count * (10 + 2 * row), *parts)
        if len(body) >= count * (10 + row):
            reward = np.where(moving, np.frombuffer(body, "<f8", count), 0.0)
            terminated = np.frombuffer(body, np.uint8, count, 8 * count) != 0
            truncated = np.frombuffer(body, np.uint8, count, 9 * count) != 0
            ended = int((terminated | truncated).sum())
            if len(body) == count * (10 + row) + ended * row and not ((terminated | truncated) & ~moving).any():
                shown = self._read(body, 10 * count, count)
                return reward, terminated, truncated, shown, self._read(body, count * (10 + row), ended)
        raise RefusedError(f"the server at {self._connection.address} answered with {len(body)} bytes, not as agreed")

    def _read(self, body: memoryview, offset: int, count: int) -> NDArray[Any]:
        rows = np.frombuffer(body, self._rows.dtype, count, offset).copy()
        try:
            self._observing.check(rows)
        except ValueError as error:
            raise RefusedError(
                f"the server at {self._connection.address} sent what is no observation: {error}"
            ) from error
        return rows


def _same(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where numbers are equal, or neither is one."""
    equal: NDArray[np.bool_] = (one == other) | ((one != one) & (other != other))  # noqa: PLR0124  (NaN)
    return equal
