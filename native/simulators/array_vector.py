"""A vector environment of a program of functions of arrays, in Gymnasium's next-step or same-step mode."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from penstock.native.pool.arguments import masked_reset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.interface import Infos


class Program(Protocol):
    """A batch of environments as functions of a state, which has all that a step depends on."""

    num_envs: int
    leaves: list[tuple[tuple[int, ...], np.dtype[Any]]]
    """Shape and dtype of every array of a state, in the order of `arrays`."""
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]

    def fresh(self, keys: NDArray[np.uint32], episodes: NDArray[np.int32]) -> Any:
        """Return the state of new episodes: keys `[num_envs, 2]` are the seeds, and episodes `[num_envs]` count."""

    def step(self, state: Any, action: NDArray[np.float32]) -> Any:
        """Return the state after one step of all; the given one stays as it is."""

    def replace(
        self, state: Any, keys: NDArray[np.uint32], episodes: NDArray[np.int32], over: NDArray[np.bool_]
    ) -> Any:
        """Return the state with new episodes for the environments in `over`."""

    def observation(self, state: Any) -> NDArray[Any]:
        """Return a state's observations, `[num_envs, ...]`, read only."""

    def rewards(self, state: Any) -> NDArray[np.float32]:
        """Return a state's rewards, `[num_envs]`, read only."""

    def dones(self, state: Any) -> NDArray[np.bool_]:
        """Return for each environment whether its episode has ended."""

    def arrays(self, state: Any) -> list[NDArray[Any]]:
        """Return copies of all arrays of a state."""

    def state_of(self, arrays: list[NDArray[Any]]) -> Any:
        """Return the state that has such arrays, which are copied."""


_OWN = {"key": (2,), "episode": (), "length": (), "over": ()}
_OWN_TYPES = {"key": np.uint32, "episode": np.int32, "length": np.int64, "over": np.bool_}


class ArrayVector(VectorEnv[Any, Any, Any]):
    """Environments of one program. `state` is the program's, whose arrays other libraries take by DLPack."""

    reset_options = frozenset({"reset_mask"})
    """The options that `reset` takes; a pool refuses others before it changes anything."""

    def __init__(self, program: Program, action_space: Box, mode: AutoresetMode, limit: int | None) -> None:
        self._program, self._limit = program, limit
        self._same_step = mode == AutoresetMode.SAME_STEP
        count = self.num_envs = program.num_envs
        self.metadata = {"autoreset_mode": mode, "render_modes": []}
        dtype: Any = program.observation_dtype.type
        self.single_observation_space = Box(-np.inf, np.inf, program.observation_shape, dtype)
        self.single_action_space = action_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(action_space, count)
        self.state: Any = None
        self._own: dict[str, NDArray[Any]] = {
            name: np.zeros((count, *shape), _OWN_TYPES[name]) for name, shape in _OWN.items()
        }

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Start episodes; without a seed an environment goes on to its next one.

        Raises:
            ValueError: `reset_mask` chooses some before all were reset.
        """
        own = self._own
        chosen, seeds = masked_reset(seed, options, self.num_envs, has_begun=self.state is not None)
        for env in np.flatnonzero(chosen).tolist():
            given = secrets.randbits(64) if seeds[env] is None and self.state is None else seeds[env]
            if given is None:
                own["episode"][env] += 1
            else:
                own["key"][env], own["episode"][env] = (given >> 32, given & 0xFFFFFFFF), 0
        own["length"][chosen], own["over"][chosen] = 0, False
        if self.state is None:
            self.state = self._program.fresh(own["key"].copy(), own["episode"].copy())
        else:
            self._replace(chosen)
        return self.observation(), {}

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step; in same-step mode `final_obs` has the last observations of the episodes that ended."""
        own = self._own
        begins = own["over"].copy()  # in next-step mode alone
        state = self._program.step(self.state, np.ascontiguousarray(actions, dtype=np.float32))
        self.state = state
        own["length"] += 1
        terminated = self._program.dones(state)
        truncated = np.zeros_like(terminated) if self._limit is None else own["length"] >= self._limit
        reward = self._program.rewards(state).copy()
        if begins.any():
            own["episode"] += begins
            self._replace(begins)
            own["length"][begins] = 0
            terminated, truncated, reward = terminated & ~begins, truncated & ~begins, np.where(begins, 0, reward)
        over = terminated | truncated
        infos: Infos = {}
        if self._same_step and over.any():
            seen, rows = self.observation(), np.full(self.num_envs, None, dtype=object)
            for env in np.flatnonzero(over).tolist():
                rows[env] = seen[env]
            infos = {"final_obs": rows, "_final_obs": over.copy()}
            own["episode"] += over
            own["length"][over] = 0
            self._replace(over)
        elif not self._same_step:
            own["over"] = over
        return self.observation(), reward, terminated, truncated, infos

    def observation(self) -> NDArray[Any]:
        """Return a copy of the current observations; `state` has them without one."""
        return np.array(self._program.observation(self.state))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that the next step depends on, `[num_envs, ...]`; arrays without elements are left out."""
        leaves = {f"state.{index}": leaf for index, leaf in enumerate(self._program.arrays(self.state)) if leaf.size}
        return leaves | {f"own.{name}": array.copy() for name, array in self._own.items()}

    def take(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` returned.

        Raises:
            ValueError: It is not such a state: names the array, and what was expected.
        """
        expected: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            f"state.{index}": leaf for index, leaf in enumerate(self._program.leaves) if 0 not in leaf[0]
        }
        expected |= {f"own.{name}": (array.shape, array.dtype) for name, array in self._own.items()}
        for name in sorted(expected.keys() | arrays.keys()):
            found = (arrays[name].shape, arrays[name].dtype) if name in arrays else None
            if found != expected.get(name):
                raise ValueError(f"{name}: found {found}, expected {expected.get(name)}")
        leaves = [
            np.zeros(*leaf) if 0 in leaf[0] else np.asarray(arrays[f"state.{index}"])
            for index, leaf in enumerate(self._program.leaves)
        ]
        self.state = self._program.state_of(leaves)
        self._own = {name: np.array(arrays[f"own.{name}"]) for name in self._own}

    def _replace(self, chosen: NDArray[np.bool_]) -> None:
        own = self._own
        # Copies: a program may read the caller's memory until the result is there, and these change.
        self.state = self._program.replace(self.state, own["key"].copy(), own["episode"].copy(), chosen.copy())
