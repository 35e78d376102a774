"""Holds and steps the environments of one connection of a server; needs Python and NumPy alone, as `server.py` does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from penstock.native.sockets import wire
    from penstock.native.sockets.rows import MASK, Rows, bound_of, described_space
except ImportError:  # copied without Penstock
    import wire  # type: ignore[import-not-found, no-redef]
    from rows import MASK, Rows, bound_of, described_space  # type: ignore[import-not-found, no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

MISSING_MASK = f"'{MASK}' is missing"
"""Beginning of the text for an environment whose infos have no mask."""
_NUMBERS = "biuf"


class RefusedError(ValueError):
    """A client asked for what is not served; it gets the text."""


class Batch:
    """The environments of one connection.

    Attributes:
        observations, actions: the layouts of their rows.
        description: the answer to HELLO, without the name.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        settings: dict[str, Any],
        num_envs: int,
        limit: int,
        *,
        takes_limit: bool,
        seed_bits: int,
        version: int = wire.VERSION,
        masks: bool = False,
    ) -> None:
        """Make them; `masks` puts the mask of allowed choices among the infos in front of each observation.

        Raises:
            RefusedError: They can't be made, or their spaces do not fit the protocol.
        """
        self._seed_bits, self._masks = seed_bits, masks
        self._counted = 0 if takes_limit or limit < 0 else limit
        given = {**settings, "max_episode_steps": limit} if takes_limit and limit else settings
        self._envs: list[Any] = []
        try:
            for _ in range(num_envs):
                try:
                    made = make(**given)
                except Exception as error:
                    raise RefusedError(f"the environment can't be made with {given}: {error}") from error
                self._envs.append(made)
                if version == wire.PLAIN_VERSION:
                    self._envs[-1] = _one_array(made)
            self._describe(self._envs[0], limit, version)
        except BaseException:
            self.close()
            raise
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._seen = np.zeros(num_envs, dtype=self.observations.dtype)
        self._ready = np.zeros(num_envs, dtype=np.bool_)

    def _describe(self, env: Any, limit: int, version: int) -> None:
        is_plain = version == wire.PLAIN_VERSION
        observation = _plain_observation(env.observation_space) if is_plain else _described("observation", env)
        action = _plain_action(env.action_space) if is_plain else _described("action", env)
        # In version 1 choices count from 0, whatever the space's start.
        self._first = int(getattr(env.action_space, "start", 0)) if is_plain and action["kind"] == "discrete" else 0
        self._is_choice = action["kind"] == "discrete"
        if self._masks and not self._is_choice:
            raise RefusedError(f"{MASK}: the actions are {env.action_space}, expected Discrete ones; leave it out")
        try:
            self.observations = Rows(observation, action["n"] if self._masks else 0)
            self.actions = Rows(action)
        except ValueError as error:
            raise RefusedError(f"the spaces do not fit the protocol: {error}") from error
        if len(self._envs) * (2 * self.observations.bytes + self.actions.bytes + 16) > wire.MAX_FRAME_BYTES:
            raise RefusedError(f"{len(self._envs)} observations of {self.observations.bytes} bytes are too many")
        spec = getattr(env, "spec", None)
        own = getattr(spec, "max_episode_steps", None)
        # An environment that takes no limit has its own in any case, beside the one that is asked for.
        limits = [each for each in (own, limit) if each and each > 0]
        self.description = {
            "observation": observation,
            "action": action,
            "action_mask": self._masks,
            "max_episode_steps": min(limits, default=None),
            "reward_threshold": getattr(spec, "reward_threshold", None),
        }

    @property
    def num_envs(self) -> int:
        """Return the number of environments."""
        return len(self._envs)

    def reset(self, body: memoryview) -> bytes:
        """Start episodes: u64 seeds `[N]`, u8 `[N]` that is 1 for those to start; returns all observations."""
        seeds = np.frombuffer(body, "<u8", self.num_envs)
        for env in np.flatnonzero(np.frombuffer(body, np.uint8, self.num_envs, 8 * self.num_envs)).tolist():
            self._begin(env, int(seeds[env]))
        return self._seen.tobytes()

    def step(self, body: memoryview) -> list[bytes]:
        """Step: u64 seeds of next episodes `[N]`, actions `[N]`, u8 `[N]` that is 1 for those to step."""
        count = self.num_envs
        seeds = np.frombuffer(body, "<u8", count)
        actions = np.frombuffer(body, self.actions.dtype, count, 8 * count)
        chosen = np.flatnonzero(np.frombuffer(body, np.uint8, count, (8 + self.actions.bytes) * count))
        reward = np.zeros(count, dtype=np.float64)
        terminated, truncated = np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.uint8)
        final: list[bytes] = []
        if not self._ready[chosen].all():
            raise RefusedError(f"environment {chosen[~self._ready[chosen]][0]} was stepped before its first reset")
        try:
            self.actions.check(actions[chosen], chosen)
        except ValueError as error:
            raise RefusedError(f"an action is none: {error}") from error
        for env in chosen.tolist():
            given = self.actions.values(actions[env])
            if self._is_choice:
                given = int(given) + self._first
            seen, reward[env], is_terminated, is_truncated, info = self._envs[env].step(given)
            self._steps[env] += 1
            terminated[env] = bool(is_terminated)
            truncated[env] = bool(is_truncated) or (0 < self._counted <= self._steps[env])
            ended = bool(terminated[env] or truncated[env])
            self._show(env, seen, info, ended=ended)
            if ended:
                final.append(self._seen[env].tobytes())
                self._begin(env, int(seeds[env]))
        return [reward.tobytes(), terminated.tobytes(), truncated.tobytes(), self._seen.tobytes(), *final]

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            with contextlib.suppress(Exception):
                env.close()

    def _begin(self, env: int, seed: int) -> None:
        while seed >> self._seed_bits:
            seed = (seed & ((1 << self._seed_bits) - 1)) ^ (seed >> self._seed_bits)
        seen, info = self._envs[env].reset(seed=seed)
        self._show(env, seen, info, ended=False)
        self._steps[env], self._ready[env] = 0, True

    def _show(self, env: int, seen: Any, info: Any, *, ended: bool) -> None:
        """Write what an environment shows into its row."""
        try:
            self.observations.write(self._seen, env, seen)
        except ValueError as error:
            raise RefusedError(f"the observation of environment {env} is none of its space: {error}") from error
        if not self._masks:
            return
        mask, room = info.get(MASK), self._seen[MASK][env]
        if mask is None and ended:
            mask = np.ones(room.shape)  # nothing is chosen after the end, and many environments leave it out
        if mask is None or np.shape(mask) != room.shape or not np.isin(mask, (0, 1)).all():
            found = MISSING_MASK if mask is None else f"'{MASK}' is {mask!r}"
            raise RefusedError(
                f"{found} in the info of environment {env}, expected 0 or 1 for each of the {room.size} choices, in "
                f"every reset and step"
            )
        room[:] = mask


def _described(which: str, env: Any) -> dict[str, Any]:
    space = getattr(env, f"{which}_space")
    try:
        return described_space(space)
    except ValueError as error:
        raise RefusedError(
            f"the {which} space is {space}, and {error}, expected Box, Discrete, MultiDiscrete, MultiBinary, or Dicts "
            f"and Tuples of these that are not empty; wrap the environment with "
            f"gymnasium.wrappers.Transform{which.capitalize()} before it is served"
        ) from error


def _plain_observation(space: Any) -> dict[str, Any]:
    """Return the description of a Box for version 1: whole numbers but bytes are floats."""
    dtype = np.dtype(space.dtype)
    name = dtype.name if dtype.kind == "f" or dtype == np.uint8 else "float32"
    shape = [int(size) for size in space.shape]
    return {"kind": "box", "dtype": name, "shape": shape, "low": bound_of(space.low), "high": bound_of(space.high)}


def _plain_action(space: Any) -> dict[str, Any]:
    """Return the description of an action for version 1: a choice from 0, or numbers."""
    if hasattr(space, "n") and not space.shape:
        return {"kind": "discrete", "n": int(space.n)}
    if hasattr(space, "low") and space.shape and np.dtype(space.dtype).kind == "f":
        return described_space(space)
    raise RefusedError(
        f"the action space is {space}, and the client speaks version 1 of the protocol, which has Discrete and a Box "
        f"of floats alone: update the client, or wrap the environment with gymnasium.wrappers.TransformAction before "
        f"it is served"
    )


def _one_array(env: Any) -> Any:
    """Return an environment that observes a Box, encoded as by Gymnasium's FlattenObservation if it does not."""
    space = env.observation_space
    if hasattr(space, "low") and space.shape and np.dtype(space.dtype).kind in _NUMBERS:
        return env
    if not getattr(space, "is_np_flattenable", False):
        raise RefusedError(f"the observation space is {space}, expected a Box, or a space that can be flattened")
    from gymnasium.wrappers import FlattenObservation  # noqa: PLC0415  (plain environments need none)

    return FlattenObservation(env)
