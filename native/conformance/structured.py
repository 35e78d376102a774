"""Checks one of Gymnasium's environments with structured observations or a mask, as a run with these settings steps it.

Whether its observations are structured, and where its mask of allowed choices is, is found out; the report says which
settings of a run that means.
"""

from __future__ import annotations

import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete
from gymnasium.spaces.utils import flatten
from gymnasium.utils.env_checker import check_env

from penstock.native.adapters.gymnasium import PREFIX
from penstock.native.adapters.one_array import MASK, is_one_array
from penstock.native.adapters.structured_actions import stored_action
from penstock.native.conformance.environment_under_test import CheckFailedError, SkippedError
from penstock.native.registry.registry import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock.native.interface import EnvironmentPool

_NUM_ENVS, _STEPS, _LIMIT = 3, 64, 60
Round = dict[str, "NDArray[Any]"]
"""The buffers of a round, and what followed its ends."""


class StructuredUnderTest:
    """The checks of one environment. Each returns a remark, or raises."""

    def __init__(self, environment_id: str) -> None:
        """Make it once, to see what it observes.

        Raises:
            ValueError: it can't be made.
        """
        self.id = environment_id
        try:
            self._single = gymnasium.make(environment_id.removeprefix(PREFIX), disable_env_checker=True)
            _, info = self._single.reset(seed=0)
        except Exception as error:  # whatever the environment throws
            raise ValueError(f"Gymnasium cannot make and reset {environment_id}: {error}") from error
        space = self._single.observation_space
        self._mask: Any = None
        if isinstance(self._single.action_space, Discrete):
            of_dict = isinstance(space, Dict) and MASK in space.spaces
            self._mask = "observation" if of_dict else "info" if MASK in info else None
        rest = [part for key, part in space.spaces.items() if key != MASK] if isinstance(space, Dict) else [space]
        self._structured = not (len(rest) == 1 and is_one_array(rest[0])) and space.is_np_flattenable

    @property
    def applies(self) -> bool:
        """Return whether there are leaves, a mask, or an observation that no array can hold."""
        space = self._single.observation_space
        return self._structured or self._mask is not None or not space.is_np_flattenable

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield names and checks."""
        yield "rounds can hold observations and actions", self.check_formats
        yield "spaces contain what is observed", self.check_spaces
        yield "the array holds every leaf exactly", self.check_array
        yield "every number is finite", self.check_finite
        yield "the mask allows a choice in every step", self.check_mask
        yield "the same seed, the same episodes", self.check_same_seed
        yield "other seeds, other episodes", self.check_other_seeds
        yield "repeated actions give the same state", self.check_repeat
        yield "gymnasium.utils.env_checker", self.check_gymnasium

    def close(self) -> None:
        """Close the environment."""
        self._single.close()

    def check_formats(self) -> str:
        """Name the leaves, and the settings of a run."""
        with self._pool() as pool:
            observed = pool.environment["observation"]
        options = ["environment.structured = true"] if self._structured else []
        options += [f"environment.action_mask = '{self._mask}'"] if self._mask else []
        leaves = ", ".join(f"{leaf['name']} ({leaf['kind']})" for leaf in observed.get("leaves", ()))
        settings = f"; settings of a run: {', '.join(options)}" if options else ""
        return f"{observed['dtype']} of shape {list(observed['shape'])}{': ' if leaves else ''}{leaves}{settings}"

    def check_spaces(self) -> str:
        """Check dtype, shape and bounds of every leaf, as the environment itself gives it."""
        for step, observation in enumerate(self._steps()):
            if not self._single.observation_space.contains(observation):
                raise CheckFailedError(
                    f"after {step} steps the observation is {observation!r}, expected one of "
                    f"{self._single.observation_space}: correct its type, shape or bounds"
                )
        return f"{_STEPS} steps"

    def check_array(self) -> str:
        """Compare the array with the observation's own numbers."""
        if not self._structured:
            raise SkippedError("it observes one array")
        space = self._single.observation_space
        with self._pool(1) as pool:
            found = self._round(pool, [0])["observation"][0, 0]
        observation, info = self._single.reset(seed=0)
        mask = {"info": info, "observation": observation}[self._mask][MASK] if self._mask else []
        if isinstance(space, Dict) and self._mask == "observation":
            space = Dict({key: part for key, part in space.spaces.items() if key != MASK})  # sorts keys, as runs do
        expected: Any = np.concatenate([mask, flatten(space, observation)])
        if not np.array_equal(found, expected):
            raise CheckFailedError("the first observation has other numbers in the array, expected the same")
        return ""

    def check_finite(self) -> str:
        """Check that there is no NaN anywhere, and no infinity in rewards."""
        with self._pool() as pool:
            played = self._round(pool)
        for name in ("observation", "reward"):
            if not np.isfinite(played[name]).all():
                step, env = np.argwhere(~np.isfinite(played[name]))[0][:2]
                raise CheckFailedError(f"the {name} of environment {env} is not finite in step {step}")
        return ""

    def check_mask(self) -> str:
        """Check that every observation of an episode allows something."""
        if not self._mask:
            raise SkippedError(f"there is no '{MASK}' in infos or observations")
        with self._pool() as pool:
            allowed = self._round(pool)["observation"][..., : pool.environment["action"]["n"]]
        if not allowed.any(-1).all():
            step, env = np.argwhere(~allowed.any(-1))[0]
            raise CheckFailedError(f"nothing is allowed in environment {env} in step {step}, expected one choice")
        return f"{allowed.mean():.0%} of the choices are allowed"

    def check_same_seed(self) -> str:
        """Compare two pools."""
        self._require_equal(self._played([1, 2, 3]), self._played([1, 2, 3]), "with the same seeds and actions")
        return ""

    def check_other_seeds(self) -> str:
        """Compare two pools with other seeds."""
        first, other = self._played([1, 2, 3]), self._played([4, 5, 6])
        if all(first[name].tobytes() == other[name].tobytes() for name in ("observation", "reward")):
            raise SkippedError(
                "other seeds give the same numbers: nothing is random, or it is not drawn from self.np_random"
            )
        return ""

    def check_repeat(self) -> str:
        """Compare a pool with one that made its steps again, as a restarted act task does."""
        with self._pool() as pool, self._pool() as restored:
            self._round(pool, [1, 2, 3])
            restored.restore(pool.save())
            self._require_equal(self._round(pool), self._round(restored), "after its actions were repeated")
        return ""

    def check_gymnasium(self) -> str:
        """Run Gymnasium's checker on a single environment."""
        if self._mask:
            raise SkippedError("it takes actions that the mask forbids")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with closing(gymnasium.make(self.id.removeprefix(PREFIX), disable_env_checker=True)) as single:
                check_env(single.unwrapped, skip_render_check=True)
        first = str(caught[0].message).removeprefix("\x1b[33mWARN: ").removesuffix("\x1b[0m") if caught else ""
        return f"{len(caught)} remark{'s' * (len(caught) > 1)}, first: {first}" if caught else ""

    def _pool(self, num_envs: int = _NUM_ENVS) -> closing[EnvironmentPool]:
        """Make a pool as a run does; episodes without a limit are given one."""
        limit = self._single.spec.max_episode_steps if self._single.spec else None
        options = {"structured": self._structured, "action_mask": self._mask, "one_action": True}
        return closing(make(self.id, num_envs, max_episode_steps=limit or _LIMIT, one_array=True, **options))

    def _played(self, seeds: list[int]) -> Round:
        with self._pool() as pool:
            return self._round(pool, seeds)

    def _round(self, pool: EnvironmentPool, seeds: list[int] | None = None) -> Round:
        """Act a round with random choices that are allowed: after new seeds, or from where the pool is."""
        described = pool.environment
        observed, action = described["observation"], described["action"]
        if seeds is not None or not self._was_reset(pool):
            pool.reset_ids(np.asarray(range(pool.num_envs) if seeds is None else seeds, np.uint64))
        rows = (_STEPS, pool.num_envs)
        played: Round = {"observation": np.zeros((*rows, *observed["shape"]), observed["dtype"])}
        dtypes = {"reward": np.float32, "terminated": np.uint8, "truncated": np.uint8, "episode_id": np.int32}
        played |= {name: np.zeros(rows, dtype) for name, dtype in dtypes.items()}
        pool.begin_round(**played)
        draw = np.random.default_rng(0)
        space = self._single.action_space
        space.seed(0)
        for step in range(_STEPS):
            if action["kind"] == "structured":
                chosen = np.stack([stored_action(space, space.sample()) for _ in range(pool.num_envs)])
            elif action["kind"] == "discrete":
                ease = draw.random((pool.num_envs, action["n"]))
                if self._mask:
                    ease *= played["observation"][step][:, : action["n"]] != 0
                chosen = ease.argmax(-1)
            else:
                low, high = (np.clip(np.asarray(action[side]), -1e3, 1e3) for side in ("low", "high"))
                chosen = draw.uniform(low, high, (pool.num_envs, *action["shape"])).astype(np.float32)
            pool.step_round(step, chosen)
        return {**played, "bootstrap observation": pool.end_round().bootstrap_observation}

    def _steps(self) -> Iterator[Any]:
        """Yield what the environment itself observes, with random choices that are allowed."""
        single = self._single
        observation, info = single.reset(seed=0)
        single.action_space.seed(0)
        for _ in range(_STEPS):
            yield observation
            mask = {"info": info, "observation": observation}[self._mask][MASK] if self._mask else None
            action = single.action_space.sample(None if mask is None else np.asarray(mask, np.int8))
            observation, _, terminated, truncated, info = single.step(action)
            if terminated or truncated:
                yield observation
                observation, info = single.reset()

    @staticmethod
    def _was_reset(pool: EnvironmentPool) -> bool:
        try:
            _ = pool.observation
        except RuntimeError:
            return False
        return True

    @staticmethod
    def _require_equal(wanted: Round, got: Round, where: str) -> None:
        for name, left in wanted.items():
            if left.tobytes() != got[name].tobytes():
                raise CheckFailedError(
                    f"the {name} differs {where}: it may depend on nothing but seed and actions, so that a restarted "
                    f"task resumes with the same bytes"
                )
