"""Checks one environment: makes it, steps it, and compares it with itself."""

from __future__ import annotations

import time
import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from penstock.native.conformance.report import CheckFailedError, SkippedError
from penstock.native.registry.registry import make_native
from penstock.native.registry.single_env import SingleEnv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.native.pool.pool import Pool

_NUM_ENVS = 8
# A pool steps its environments one by one up to 31 of them, and more of them in groups, where there is a step_group.
_GROUPS, _UNGROUPED, _GROUP_SHARE = 4, 16, 6
_MIN_STEPS, _MAX_STEPS = 60, 600
# Time limit of one rollout's steps: slow environments are stepped less often.
_ROLLOUT_SECONDS = 0.4
_PARTS = ("observation", "reward", "terminated", "truncated")


@dataclass(frozen=True, slots=True)
class Rollout:
    """Everything that steps gave: [T + 1, B, ...] observations, [T, B] the rest, and the state at the end."""

    observation: NDArray[Any]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    state: dict[str, NDArray[Any]]

    def of(self, envs: slice) -> Rollout:
        """Return the same of some environments."""
        seen, reward, terminated, truncated = (getattr(self, name)[:, envs] for name in _PARTS)
        return Rollout(seen, reward, terminated, truncated, {name: values[envs] for name, values in self.state.items()})


class CheckedEnvironment:
    """The checks of one environment. Each returns a remark, or raises."""

    def __init__(self, environment_id: str) -> None:
        self.id = environment_id
        with closing(make_native(environment_id, 1)) as pool:
            self.observation_space: Any = pool.single_observation_space
            self.action_space: Any = pool.single_action_space
            self.agents, self.limit = pool.environment["agents"], pool.environment["max_episode_steps"]
        self._actions: list[Any] = []

    def pool(self, num_envs: int = _NUM_ENVS, **options: Any) -> closing[Pool]:
        """Make a pool whose episodes end: those without a limit are given one."""
        return closing(make_native(self.id, num_envs, **{"max_episode_steps": self.limit or _MIN_STEPS, **options}))

    def actions(self) -> list[Any]:
        """Return the actions of every rollout, the same each time."""
        if not self._actions:
            with self.pool() as pool:
                pool.action_space.seed(0)
                pool.reset(seed=0)
                samples = [pool.action_space.sample() for _ in range(_MAX_STEPS)]
                started = time.perf_counter()
                for sample in samples[:10]:
                    pool.step(sample)
                steps = int(_ROLLOUT_SECONDS / ((time.perf_counter() - started) / 10))
            self._actions = samples[: min(max(steps, _MIN_STEPS), _MAX_STEPS)]
        return self._actions

    def rollout(self, pool: Pool, actions: Sequence[Any], seed: int | list[int] | None = 1) -> Rollout:
        """Step through actions: after a reset, or, without a seed, from the pool's current state."""
        first = pool.observation if seed is None else pool.reset(seed=seed)[0]
        steps = [pool.step(action)[:4] for action in actions]
        observation, reward, terminated, truncated = (np.stack(part) for part in zip(*steps, strict=True))
        return Rollout(np.concatenate([first[None], observation]), reward, terminated, truncated, pool.save())

    def check_spaces(self) -> str:
        """Check dtype, shape and bounds of all that is observed."""
        with self.pool() as pool:
            seen = self.rollout(pool, self.actions()).observation
        space = self.observation_space
        wrong = ~((seen >= space.low) & (seen <= space.high))
        if wrong.any():
            at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            index = ", ".join(str(part) for part in at[2:])
            bounds = f"[{space.low[at[2:]]:g}, {space.high[at[2:]]:g}]"
            raise CheckFailedError(
                f"value [{index}] is {seen[at]:g} after {at[0]} steps, beyond its bounds {bounds}: widen "
                f"`observation`, or clamp what observe() writes ({int(wrong.sum())} of {wrong.size} values are wrong)"
            )
        return f"{seen.shape[0] - 1} steps of {seen.shape[1]} environments"

    def check_finite(self) -> str:
        """Check that there is no NaN anywhere, and no infinity in rewards."""
        with self.pool() as pool:
            got = self.rollout(pool, self.actions())
        require_finite(got.observation, got.reward)
        return f"rewards from {got.reward.min():g} to {got.reward.max():g}"

    def check_extremes(self) -> str:
        """Check that the environment clips Box actions beyond their bounds."""
        if self.action_space.dtype != np.float32:
            raise SkippedError("actions are integers, which the pool checks")
        low, high = np.maximum(self.action_space.low, -1e6), np.minimum(self.action_space.high, 1e6)
        with self.pool() as pool:
            for action in (low, high, 10 * low - 1, 10 * high + 1):
                batch = np.broadcast_to(action, (_NUM_ENVS, *self.action_space.shape)).astype(np.float32)
                got = self.rollout(pool, [batch] * 20)
                if not (np.isfinite(got.observation).all() and np.isfinite(got.reward).all()):
                    raise CheckFailedError(f"the action {action.tolist()} leads to a value that is not finite")
        return "stays finite"

    def check_mask(self) -> str:
        """Check that some choice is allowed, of some agent, while an episode goes on."""
        with self.pool() as pool:
            described = pool.environment
            if "behind_mask" not in described["observation"]:
                raise SkippedError("every choice is allowed")
            got = self.rollout(pool, self.actions())
        choices = described["action"]["n"] * max(self.agents, 1)
        allowed: NDArray[np.bool_] = np.any(got.observation.reshape(*got.observation.shape[:2], -1)[..., :choices], -1)
        # An observation is that of an episode that goes on, unless the step before ended it.
        goes_on = np.concatenate([np.ones_like(allowed[:1]), ~(got.terminated | got.truncated)])
        if (wrong := goes_on & ~allowed).any():
            step, env = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            raise CheckFailedError(
                f"no choice is allowed in environment {env} after {step} steps: action_mask() must allow one, or "
                "step() end the episode"
            )
        return ""

    def check_groups(self) -> str:
        """Check that `step_group`, which many environments in one pool are stepped by, gives what `step` gives."""
        whole, part = _GROUPS * _UNGROUPED, _UNGROUPED
        steps = len(self.actions()) // _GROUP_SHARE
        seeds = list(range(whole))
        with self.pool(whole) as pool:
            pool.action_space.seed(1)
            actions = [pool.action_space.sample() for _ in range(steps)]
            got = self.rollout(pool, actions, seeds)
        for first in range(0, whole, part):
            these = slice(first, first + part)
            with self.pool(part) as pool:
                wanted = self.rollout(pool, [action[these] for action in actions], seeds[these])
            _require_equal(
                wanted,
                got.of(these),
                f"in a pool of {whole} and one of {part}; step_group() must compute what step() does",
            )
        return f"{steps} steps"

    def check_same_seed(self) -> str:
        """Check that a reset sets everything: nothing of an earlier episode is left."""
        with self.pool() as fresh, self.pool() as used:
            used.reset(seed=77)
            for action in self.actions()[:37]:
                used.step(action)
            wanted, got = (self.rollout(pool, self.actions()) for pool in (fresh, used))
        _require_equal(wanted, got, "in a pool that was stepped before; reset() must set every member of the state")
        return ""

    def check_other_seeds(self) -> str:
        """Check that seeds matter, unless nothing is drawn at random."""
        with self.pool() as pool:
            pool.reset(seed=[0] * _NUM_ENVS)
            before = pool.save()["generator"]
            pool.reset()
            if np.array_equal(before, pool.save()["generator"]):
                raise SkippedError("reset() draws nothing at random")
            got = self.rollout(pool, [np.broadcast_to(a[:1], a.shape) for a in self.actions()])
        if all(np.array_equal(got.observation[:, 0], got.observation[:, env]) for env in range(1, _NUM_ENVS)):
            raise CheckFailedError(f"{_NUM_ENVS} seeds give the same observations, though reset() draws numbers")
        return ""

    def check_threads(self) -> str:
        """Check that environments share nothing that they write to."""
        with self.pool() as one, self.pool(num_threads=3) as three:
            wanted, got = (self.rollout(pool, self.actions()) for pool in (one, three))
        _require_equal(wanted, got, "with three threads; environments must not write to anything static")
        return ""

    def check_restore(self) -> str:
        """Check that the saved state is everything that the next step depends on."""
        actions = self.actions()
        half = len(actions) // 2
        with self.pool() as original, self.pool() as other:
            self.rollout(original, actions[:half])
            state = original.save()
            other.reset(seed=5)
            for action in actions[: half + 3]:
                other.step(action)
            other.restore(state)
            wanted, got = (self.rollout(pool, actions[half:], seed=None) for pool in (original, other))
        _require_equal(wanted, got, "after a restore; PENSTOCK_FIELDS must list every member that a step depends on")
        return f"{len(state)} arrays"

    def check_time_limit(self) -> str:
        """Check that a time limit truncates and changes nothing else."""
        limit = min(self.limit or 5, 5)
        actions = self.actions()[:limit]
        with (
            self.pool(max_episode_steps=limit, autoreset_mode=AutoresetMode.SAME_STEP) as limited,
            self.pool(max_episode_steps=limit + 1, autoreset_mode=AutoresetMode.DISABLED) as free,
        ):
            limited.reset(seed=3)
            free.reset(seed=3)
            going = np.ones(_NUM_ENVS, dtype=np.bool_)
            for step, action in enumerate(actions, 1):
                _, _, terminated, truncated, infos = limited.step(action)
                seen, _, natural, own, _ = free.step(action)
                if not np.array_equal(terminated[going], natural[going]):
                    raise CheckFailedError(
                        f"`terminated` differs at step {step} where there is a limit of {limit} steps"
                    )
                ended = going & (natural | own | (step == limit))
                if not np.array_equal((terminated | truncated)[going], ended[going]):
                    raise CheckFailedError(f"a limit of {limit} steps does not end episodes at step {limit}")
                for env in np.flatnonzero(ended):
                    if not np.array_equal(infos["final_obs"][env], seen[env]):
                        raise CheckFailedError(f"the final observation of environment {env} is not its last one")
                going &= ~ended
                if not going.any() or (natural | own).any():
                    break  # nothing resets the others' counterparts
        return f"{limit} steps"

    def check_gymnasium(self) -> str:
        """Run Gymnasium's checker on a single environment."""
        if self.agents:
            raise SkippedError(f"{self.agents} agents have a reward each, and gymnasium.Env has one")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            environment = SingleEnv(self.id)
            check_env(environment, skip_render_check=True)
            environment.close()
        first = str(caught[0].message).removeprefix("\x1b[33mWARN: ").removesuffix("\x1b[0m") if caught else ""
        return f"{len(caught)} remark{'s' * (len(caught) > 1)}, first: {first}" if caught else ""

    def measure(self) -> dict[str, float]:
        """Measure nanoseconds from rounds of two sizes; the best of several, as other programs run too."""
        small, large = (self._nanoseconds_per_call(size) for size in (1, 256))
        per_step = max((large - small) / 255, 0.0)
        return {"ns_per_step": round(per_step, 1), "ns_per_call": round(max(small - per_step, 0.0), 1)}

    def _nanoseconds_per_call(self, num_envs: int) -> float:
        steps = max(len(self.actions()) // 4, 20)
        rewards = (num_envs, self.agents) if self.agents else (num_envs,)
        with self.pool(num_envs) as pool:
            space = self.observation_space
            observation = np.zeros((steps, num_envs, *space.shape), space.dtype)
            reward = np.zeros((steps, *rewards), np.float32)
            flags = [np.zeros((steps, num_envs), dtype) for dtype in (np.uint8, np.uint8, np.int32)]
            actions = [np.ascontiguousarray(pool.action_space.sample()) for _ in range(steps)]
            pool.reset_ids(np.arange(num_envs, dtype=np.uint64))
            best = float("inf")
            for _ in range(5):
                pool.begin_round(observation, reward, *flags)
                started = time.perf_counter_ns()
                for t, action in enumerate(actions):
                    pool.step_round(t, action)
                best = min(best, (time.perf_counter_ns() - started) / steps)
                pool.end_round()
        return best


def require_finite(observation: NDArray[Any], reward: NDArray[Any]) -> None:
    """Refuse a rollout's observations and rewards, `[T, B, ...]`, with NaN or infinity, and name the first."""
    for name, values in (("observation", observation), ("reward", reward)):
        bad = ~np.isfinite(values)
        if bad.any():
            at = np.unravel_index(int(np.argmax(bad)), bad.shape)
            raise CheckFailedError(f"the {name} of environment {at[1]} is {values[at]} at step {at[0]}")


def require_equal_parts(wanted: object, got: object, where: str) -> None:
    """Compare observations, rewards and ends of two rollouts, `[T, B, ...]`, and name the first that differs."""
    for name in _PARTS:
        left, right = getattr(wanted, name), getattr(got, name)
        if left.tobytes() != right.tobytes():
            differs = (left != right) & ~((left != left) & (right != right))  # noqa: PLR0124 NaN equals NaN here
            step, env = np.unravel_index(int(np.argmax(differs)), differs.shape)[:2]
            raise CheckFailedError(f"the {name} of environment {env} differs at step {step} {where}")


def _require_equal(wanted: Rollout, got: Rollout, where: str) -> None:
    require_equal_parts(wanted, got, where)
    for name, left in wanted.state.items():
        if left.tobytes() != got.state[name].tobytes():
            raise CheckFailedError(f"the state's {name} differs {where}")
