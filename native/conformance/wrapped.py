"""Checks one environment that another library steps: as a run makes it, with its observations as one array.

Of one of Gymnasium's or of a server, structured observations and its mask of allowed choices are found out, unless the
settings say how a run has them; the report says which settings of a run that means.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native.adapters.structured_actions import stored_action
from penstock.native.conformance.environment_under_test import require_equal_parts, require_finite
from penstock.native.conformance.own_environment import own_environment
from penstock.native.conformance.report import CheckFailedError, SkippedError
from penstock.native.registry.registry import make
from penstock.native.teams.masks import permitted
from penstock.native.teams.structured import TeamSpace, TeamVectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.interface import EnvironmentPool, EnvironmentSpec, RoundEnd

_NUM_ENVS, _OWN_STEPS = 4, 64
_MIN_STEPS, _MAX_STEPS = 20, 300
# Time limit of one rollout's steps: slow environments are stepped less often.
_ROLLOUT_SECONDS = 0.4
_ENCODING = ("structured", "action_mask")
_OF_A_RUN = (*_ENCODING, "wrappers", "address", "tls_certificate")
"""Settings of `environment` itself; others are of `environment.settings`."""
_SEEDS = np.arange(1, _NUM_ENVS + 1, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Round:
    """A round's buffers, [T, B, ...], rewards [T, B, agents] where there are any, and the rest of its result."""

    observation: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.uint8]
    truncated: NDArray[np.uint8]
    end: RoundEnd


class CheckedWrapped:
    """The checks of one environment. Each returns a remark, or raises."""

    def __init__(self, environment_id: str, settings: Mapping[str, Any]) -> None:
        """Make it.

        Raises:
            ValueError: there is none of that id, or it can't be made.
        """
        self.id, self._settings = environment_id, dict(settings)
        others = {name: value for name, value in settings.items() if name not in _ENCODING}
        own = own_environment(environment_id, others)
        if own is not None and not own.mask and settings.get("action_mask"):
            own.close()
            raise ValueError(
                f"environment.action_mask = {settings['action_mask']!r}: {environment_id} gives no mask of allowed "
                f"choices, neither in its infos nor in its observations; leave it out"
            )
        if own is not None and own.is_plain:
            own.close()
            own = None
        self.own = own
        if own is not None:
            self._settings = {"structured": own.structured, "action_mask": own.mask, **settings}
        with self.pool() as pool:
            self.space: Any = pool.single_observation_space
            self.action_space: Any = pool.own_action_space
        self._actions: list[Any] = []

    def close(self) -> None:
        """Close what was made."""
        if self.own is not None:
            self.own.close()

    def pool(self, num_envs: int = _NUM_ENVS, **options: Any) -> closing[EnvironmentPool]:
        """Make a pool as a run does."""
        return closing(make(self.id, num_envs, one_array=True, one_action=True, **self._settings, **options))

    @cached_property
    def environment(self) -> EnvironmentSpec:
        """Return the formats of observations and actions; ValueError where rounds can't hold them."""
        with self.pool() as pool:
            return pool.environment

    @cached_property
    def _observed(self) -> Mapping[str, Any]:
        """Return the format of observations; nothing where rounds can't hold them, which `check_formats` reports."""
        try:
            return self.environment["observation"]
        except ValueError:
            return {}

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks that apply, by name."""
        yield "rounds can hold observations and actions", self.check_formats
        yield "spaces contain what is observed", self.check_spaces
        if self.own is not None and self._settings["structured"]:
            yield "the array holds every leaf exactly", self.check_array
        yield "every number is finite", self.check_finite
        if "behind_mask" in self._observed:
            yield "the mask allows a choice in every step", self.check_mask
        yield "the same seed, the same episodes", self.check_same_seed
        yield "other seeds, other episodes", self.check_other_seeds
        yield "repeated actions restore it, bit for bit", self.check_restore
        yield "the time limit truncates", self.check_time_limit
        if self.own is not None and not self.own.mask:  # it takes actions that a mask forbids
            yield "gymnasium.utils.env_checker", self.own.check

    def actions(self) -> list[NDArray[Any]]:
        """Return the actions of every rollout, the same each time, as rounds take them."""
        if not self._actions:
            self.action_space.seed(0)
            samples = [[self.action_space.sample() for _ in range(_NUM_ENVS)] for _ in range(_MAX_STEPS)]
            rows = [np.stack([self._stored(sample) for sample in row]) for row in samples]
            with self.pool() as pool:
                pool.reset_ids(_SEEDS)
                started = time.perf_counter()
                self.play(pool, rows[:10])
                steps = int(_ROLLOUT_SECONDS / ((time.perf_counter() - started) / 10))
            self._actions = rows[: min(max(steps, _MIN_STEPS), _MAX_STEPS)]
        return self._actions

    def _stored(self, action: Any) -> NDArray[Any]:
        """Return an action as rounds hold it."""
        kind = self.environment["action"]["kind"]
        if kind == "structured":
            space, of_team = self.action_space, isinstance(self.action_space, TeamSpace)
            stored: NDArray[Any] = TeamVectors(space).encode(action) if of_team else stored_action(space, action)
            return stored
        if kind == "box":
            return np.asarray(action, np.float32)
        return np.asarray(action - self.action_space.start, np.int64)

    def play(self, pool: EnvironmentPool, actions: Sequence[NDArray[Any]]) -> Round:
        """Make a round of these actions; of choices that a mask forbids, of others in their place."""
        agents = pool.environment["agents"]
        shape, described = (len(actions), pool.num_envs), pool.environment["observation"]
        observation = np.zeros((*shape, *described["shape"]), described["dtype"])
        reward = np.zeros((*shape, agents) if agents else shape, np.float32)
        terminated, truncated = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        pool.begin_round(observation, reward, terminated, truncated, np.zeros(shape, np.int32))
        for t, action in enumerate(actions):
            if "behind_mask" in described:
                action = permitted(pool.environment, observation[t], action)  # noqa: PLW2901
            pool.step_round(t, action)
        return Round(observation, reward, terminated, truncated, pool.end_round())

    def seeded(self, seeds: NDArray[np.uint64] = _SEEDS) -> Round:
        """Make a round of a new pool."""
        with self.pool() as pool:
            pool.reset_ids(seeds)
            return self.play(pool, self.actions())

    def check_formats(self) -> str:
        """Name the leaves, and the settings of a run; both are there if the settings say so."""
        observed = self.environment["observation"]
        if self._settings.get("structured") and "leaves" not in observed:
            raise CheckFailedError(
                f"environment.structured = true: found one array of shape {list(observed['shape'])}, expected "
                f"Discrete, Tuple or Dict; leave it out"
            )
        leaves = ", ".join(f"{leaf['name']} ({leaf['kind']})" for leaf in observed.get("leaves", ()))
        said = ", ".join(
            f"environment.{'' if name in _OF_A_RUN else 'settings.'}{name} = "
            f"{str(value).lower() if isinstance(value, bool) else repr(value)}"
            for name, value in self._settings.items()
            if value or name not in _ENCODING
        )
        settings = f"; settings of a run: {said}" if said else ""
        return f"{observed['dtype']} of shape {list(observed['shape'])}{': ' if leaves else ''}{leaves}{settings}"

    def check_spaces(self) -> str:
        """Check type, shape and bounds of all that is observed: of every leaf, or in arrays of numbers."""
        if self.own is not None:
            for step, observation in enumerate(self.own.observed(_OWN_STEPS)):
                if not self.own.space.contains(observation):
                    raise CheckFailedError(
                        f"after {step} steps the observation is {observation!r}, expected one of {self.own.space}: "
                        f"correct its type, shape or bounds"
                    )
            return f"{_OWN_STEPS} steps"
        got = self.seeded()
        low, high = getattr(self.space, "low", None), getattr(self.space, "high", None)
        if low is None or high is None:
            raise SkippedError(f"{type(self.space).__name__} has no bounds")
        for seen, is_final in ((got.observation, False), (got.end.bootstrap_observation, True)):
            wrong = ~((seen >= low) & (seen <= high))
            if wrong.any():
                at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
                place, when = (at[1:], "an episode's last step") if is_final else (at[2:], f"{at[0]} steps")
                raise CheckFailedError(
                    f"value {[int(part) for part in place]} is {seen[at]:g} after {when}, beyond its bounds "
                    f"[{low[place]:g}, {high[place]:g}] ({int(wrong.sum())} of {wrong.size} values are)"
                )
        rows = got.observation
        return f"{len(rows)} steps of {_NUM_ENVS} environments, {rows.dtype} {rows.shape[2:]}"

    def check_array(self) -> str:
        """Compare the array with the observation's own numbers."""
        assert self.own is not None
        with self.pool(1) as pool:
            pool.reset_ids(np.zeros(1, np.uint64))
            found = self.play(pool, [action[:1] for action in self.actions()[:1]]).observation[0, 0]
        if not np.array_equal(found, self.own.first_array()):
            raise CheckFailedError("the first observation has other numbers in the array, expected the same")
        return ""

    def check_mask(self) -> str:
        """Check that every observation of an episode allows something."""
        choices = self.environment["action"]["n"] * (self.environment["agents"] or 1)
        allowed = self.seeded().observation[..., :choices] != 0
        if not allowed.any(-1).all():
            step, env = np.argwhere(~allowed.any(-1))[0]
            raise CheckFailedError(f"nothing is allowed in environment {env} in step {step}, expected one choice")
        return f"{allowed.mean():.0%} of the choices are allowed"

    def check_finite(self) -> str:
        """Check that there is no NaN and no infinity anywhere."""
        got = self.seeded()
        require_finite(got.observation, got.reward)
        final = got.end.bootstrap_observation
        bad = ~np.isfinite(final)
        if bad.any():
            at = np.unravel_index(int(np.argmax(bad)), bad.shape)
            raise CheckFailedError(
                f"an observation after an episode's last step has {final[at]}, and learners take its value at a time "
                f"limit; expected a finite number"
            )
        return f"rewards from {got.reward.min():g} to {got.reward.max():g}"

    def check_same_seed(self) -> str:
        """Check that a seed by ids decides everything: in a new pool, and in one that was stepped before."""
        wanted = self.seeded()
        with self.pool() as used:
            used.reset_ids(_SEEDS + np.uint64(76))
            self.play(used, self.actions()[:17])
            used.reset_ids(_SEEDS)
            got = self.play(used, self.actions())
        _require_equal(wanted, self.seeded(), "in another new pool: it depends on more than seeds and actions")
        _require_equal(
            wanted, got, "in a pool that was stepped before: it keeps something that its seed does not reset"
        )
        return ""

    def check_other_seeds(self) -> str:
        """Check that seeds matter, unless nothing is drawn at random."""
        with self.pool() as pool:
            pool.reset_ids(_SEEDS)
            got = self.play(pool, [np.ascontiguousarray(np.broadcast_to(a[:1], a.shape)) for a in self.actions()])
        if all(np.array_equal(got.observation[:, 0], got.observation[:, env]) for env in range(1, _NUM_ENVS)):
            raise SkippedError("all seeds give the same episodes: nothing is drawn at random, or seeds are ignored")
        return ""

    def check_restore(self) -> str:
        """Check that a state, which is the actions so far, brings another pool to the same bytes."""
        actions = self.actions()
        half = len(actions) // 2
        with self.pool() as original, self.pool() as other:
            original.reset_ids(_SEEDS)
            self.play(original, actions[:half])
            other.reset_ids(_SEEDS + np.uint64(5))
            self.play(other, actions[: half // 2])
            other.restore(original.save())
            wanted, got = (self.play(pool, actions[half:]) for pool in (original, other))
        _require_equal(wanted, got, "after a restore: it depends on more than seeds and actions")
        return f"{half} steps were repeated"

    def check_time_limit(self) -> str:
        """Check that a limit ends episodes."""
        try:
            limited = self.pool(max_episode_steps=5)
        except ValueError as error:
            raise SkippedError(str(error)) from None
        with limited as pool:
            pool.reset_ids(_SEEDS)
            got = self.play(pool, self.actions()[:5])
        ended = (got.terminated | got.truncated).any(0)
        if not ended.all():
            raise CheckFailedError(
                f"a limit of 5 steps does not end the episode of environment {int(np.argmin(ended))}"
            )
        return f"its own: {self.environment['max_episode_steps'] or 'none'}"

    def measure(self) -> dict[str, float]:
        """Measure nanoseconds of a step of one of several environments, the call included."""
        with self.pool() as pool:
            pool.reset_ids(_SEEDS)
            best = float("inf")
            for _ in range(3):
                started = time.perf_counter_ns()
                self.play(pool, self.actions())
                best = min(best, (time.perf_counter_ns() - started) / len(self.actions()) / _NUM_ENVS)
        return {"ns_per_step": round(best, 1)}


def _require_equal(wanted: Round, got: Round, where: str) -> None:
    require_equal_parts(wanted, got, where)
    if wanted.end.bootstrap_observation.tobytes() != got.end.bootstrap_observation.tobytes():
        raise CheckFailedError(f"a final observation differs {where}")
