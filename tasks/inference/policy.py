"""A trained policy as an object: acts on observations without Prefect, Dask or a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from penstock.native import fill_noise
from penstock.native.adapters.structured_actions import ActionVectors, own_action
from penstock.native.teams.structured import TeamSpace, TeamVectors
from penstock.tasks.seeds import Purpose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from penstock.storage.shards.specs import Spec
    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.specs import EnvironmentSpec, Params


@dataclass(frozen=True, slots=True)
class Origin:
    """The snapshot that a policy was loaded from."""

    store: str
    """Folder or s3:// address that holds the run."""
    run: str
    """Name of the run."""
    version: int
    """Version of the snapshot: 0 before any learning, one more with every round."""
    stage: int
    """Stage whose commit names it."""
    env_steps: int
    """Environment steps of the run up to that commit."""
    digest: str
    """Digest of the snapshot's file."""


class Policy:
    """A policy with fixed parameters, for one observation or a batch; `penstock.load_policy` makes it.

    `act` keeps the memory of recurrent policies between its calls, and draws its own noise. `predict` has the signature
    of stable-baselines3 and keeps no memory. Normalisers, action masks and the scaling of actions are the policy's: it
    takes what the environment gives and returns what the environment takes. Not for several threads at once.

    Attributes:
        observation_space: of one environment, as in Gymnasium.
        action_space: likewise.
        origin: the snapshot.
        settings: the run's settings, as stored with it.
        device: where the network is computed.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        environment: EnvironmentSpec,
        params: Params,
        *,
        observation_space: Space[Any],
        action_space: Space[Any],
        origin: Origin,
        settings: Mapping[str, Any],
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.device = torch.device(device)
        self.observation_space, self.action_space = observation_space, action_space
        self.origin, self.settings = origin, settings
        self.algorithm, self.environment = algorithm, environment
        self.params: Params = {
            group: {name: value.detach().to(self.device) for name, value in named.items()}
            for group, named in params.items()
        }
        self._vectors: ActionVectors | TeamVectors | None = None
        if environment.action.kind == "structured":
            self._vectors = (
                TeamVectors(action_space) if isinstance(action_space, TeamSpace) else ActionVectors(action_space)
            )
        self._seed = seed
        self._draws = 0
        self._memory: Tensor | None = None

    def __repr__(self) -> str:
        """Name the environment and the snapshot."""
        origin = self.origin
        return f"<Policy for {self.environment.name}: version {origin.version} of run '{origin.run}' in {origin.store}>"

    @property
    def has_memory(self) -> bool:
        """Return whether actions depend on earlier observations of the episode."""
        return self.algorithm.initial_carry(1) is not None

    def act(self, observation: ArrayLike, *, deterministic: bool = True) -> Any:
        """Return the action for an observation, or those for a batch, as the environment takes them.

        A policy with a memory remembers what it saw; call `reset` where episodes begin. The memory belongs to the rows
        of a batch, so a batch of another size needs `reset` first.

        Args:
            observation: one observation of `observation_space`, or a batch `[B, ...]`; or what the environment itself
                gives, if that is a Dict, a Tuple or Discrete, or a list of the former.
            deterministic: return the greedy action, as in evaluations; otherwise a sampled one, as in training.

        Returns:
            int64 for discrete actions and float32 for vectors, `[*action]` or `[B, *action]`; structured actions as
            `action_space` has them, and for a batch their arrays `[B, ...]`; of several agents by the agent's name.

        Raises:
            ValueError: the observation has another shape or type, or a number that is not finite; or the memory is that
                of another number of rows.
        """
        return self.own_actions(self.act_stored(observation, deterministic=deterministic))

    def act_stored(self, observation: ArrayLike, *, deterministic: bool = True) -> NDArray[Any]:
        """Act as `act` does, and return actions as shards hold them and a run's pools take them."""
        rows, single = self._rows(observation)
        if self.has_memory and self._memory is not None and len(self._memory) != len(rows):
            raise ValueError(
                f"{len(rows)} observation(s), and a memory of {len(self._memory)} episode(s) from earlier calls: call "
                f"reset() where a batch of new episodes begins"
            )
        memory = self.algorithm.initial_carry(len(rows)) if self._memory is None else self._memory
        action, self._memory = self._step(rows, memory, deterministic)
        return self._actions(action, single)

    def own_actions(self, stored: NDArray[Any]) -> Any:
        """Return actions as the environment takes them, of those that shards hold: one, or a batch `[B, ...]`."""
        if self._vectors is not None:
            return self._vectors.decode(stored)
        return own_action(self.action_space, stored) if isinstance(self.action_space, Discrete) else stored

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Forget: for policies with a memory, where episodes begin.

        Args:
            rows: indices, or bool `[B]`, of the rows of the batch whose episodes ended, maybe none; None forgets all of
                them.

        Raises:
            ValueError: they are neither, or beyond the batch.
        """
        if rows is None or self._memory is None:
            self._memory = None
            return
        fresh = self.algorithm.initial_carry(len(self._memory))
        assert fresh is not None
        ended, count = np.atleast_1d(np.asarray(rows)), len(self._memory)
        if not ended.size:
            return
        is_mask = ended.dtype == np.bool_ and ended.shape == (count,)
        if not is_mask and (ended.dtype.kind not in "iu" or ended.min() < -count or ended.max() >= count):
            raise ValueError(
                f"rows is {rows!r}, expected indices below {count}, or bool [{count}], as the batch has rows"
            )
        index = torch.from_numpy(ended if is_mask else ended.astype(np.int64))
        self._memory = self._memory.clone()
        self._memory[index] = fresh.to(self._memory)[index]

    def predict(
        self,
        observation: ArrayLike,
        state: tuple[NDArray[np.float32], ...] | None = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, tuple[NDArray[np.float32], ...] | None]:
        """Return actions and the next memory, with the signature of `predict` in stable-baselines3.

        Args:
            observation: as for `act`.
            state: memory that the last call returned; None where all episodes begin.
            episode_start: bool `[B]`, True for rows whose episode begins; they start with an empty memory.
            deterministic: as for `act`, but False by default, as in stable-baselines3.

        Returns:
            Actions, as `act` returns them, and the memory in a tuple; None for a policy without one.

        Raises:
            ValueError: the observation, or the memory, has another shape or type; or the former has a number that is
                not finite.
        """
        rows, single = self._rows(observation)
        memory = self.algorithm.initial_carry(len(rows))
        if memory is not None and state is not None:
            expected = tuple(memory.shape)
            given = torch.from_numpy(np.asarray(state[0] if len(state) else (), dtype=np.float32))
            if tuple(given.shape) != expected:
                raise ValueError(f"state has the shape {tuple(given.shape)}, expected {expected}: as returned before")
            fresh = np.zeros(len(rows), dtype=bool) if episode_start is None else np.atleast_1d(episode_start)
            if fresh.shape != (len(rows),) or fresh.dtype.kind not in "biuf":
                raise ValueError(f"episode_start is {episode_start!r}, expected bool [{len(rows)}]")
            starts = torch.from_numpy(fresh.astype(bool)).view(-1, *[1] * (memory.dim() - 1))
            memory = torch.where(starts, memory, given)
        action, memory = self._step(rows, memory, deterministic)
        return self.own_actions(self._actions(action, single)), None if memory is None else (memory.cpu().numpy(),)

    def noise(self, rows: int) -> NDArray[np.float32]:
        """Draw random numbers for sampled actions, `[rows, ...]`; a policy draws the same ones again after loading."""
        spec = self.algorithm.noise
        drawn = np.empty((1, rows, *spec.shape), dtype=np.float32)
        fill_noise(spec.kind, self._seed, Purpose.INFERENCE, np.arange(rows, dtype=np.int64), self._draws, drawn)
        self._draws += 1
        return drawn.reshape(drawn.shape[1:])

    def step(
        self, rows: NDArray[Any], memory: NDArray[np.float32] | None, deterministic: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Act on a batch of rows from several callers, each greedy or sampled, without the policy's own memory.

        Args:
            rows: observations `[B, ...]`, as `as_rows` returns them.
            memory: `[B, ...]`; None for policies without one.
            deterministic: bool `[B]`.

        Returns:
            Actions `[B, ...]` as shards hold them, and the next memory.
        """
        action, following = self._step(
            torch.from_numpy(rows), None if memory is None else torch.from_numpy(memory), deterministic
        )
        return action.cpu().numpy(), None if following is None else following.cpu().numpy()

    def initial_memory(self, rows: int) -> NDArray[np.float32] | None:
        """Return empty memories `[rows, ...]`; None for policies without one."""
        carry = self.algorithm.initial_carry(rows)
        return None if carry is None else carry.numpy()

    def _step(
        self, rows: Tensor, memory: Tensor | None, deterministic: bool | NDArray[np.bool_]
    ) -> tuple[Tensor, Tensor | None]:
        if np.all(deterministic):
            noise = torch.zeros((len(rows), *self.algorithm.noise.shape))
        else:
            drawn = self.noise(len(rows))
            drawn[np.broadcast_to(deterministic, len(rows))] = 0.0
            noise = torch.from_numpy(drawn)
        with torch.inference_mode():
            columns, memory = self.algorithm.act(
                self.params,
                None if memory is None else memory.to(self.device),
                rows.to(self.device),
                noise.to(self.device),
            )
        return columns["action"], memory

    def _rows(self, observation: ArrayLike) -> tuple[Tensor, bool]:
        rows, single = self.as_rows(observation)
        return torch.from_numpy(rows), single

    def as_rows(self, observation: ArrayLike) -> tuple[NDArray[Any], bool]:
        """Return observations as a new array `[B, ...]`, and whether there was one without the batch's axis.

        An environment's own Dict, Tuple or Discrete observation is encoded as in training; so are a list
        of them, and an array of a Discrete's choices.

        Raises:
            ValueError: their shape or type is another one, an integer is out of range, or a number is not finite.
        """
        rows, single = self._own_rows(observation) or self._array_rows(observation)
        _require_finite(rows, self.environment.observation)
        return rows, single

    def _array_rows(self, observation: ArrayLike) -> tuple[NDArray[Any], bool]:
        spec = self.environment.observation
        try:
            given = np.asarray(observation)
        except ValueError:
            raise ValueError(
                f"an observation of rows that differ in shape; {self.environment.name} has {spec.shape} in each"
            ) from None
        single = given.shape == spec.shape
        if not single and (given.ndim != len(spec.shape) + 1 or given.shape[1:] != spec.shape):
            raise ValueError(
                f"an observation of shape {given.shape}; {self.environment.name} has {spec.shape}, and a batch of B "
                f"of them has (B{''.join(f', {size}' for size in spec.shape)})"
            )
        # A Python list of numbers is int64 or float64; an image of floats would be another image once it is cast.
        is_list = isinstance(observation, list | tuple | int)
        if given.dtype.kind not in "biuf" or not (is_list or np.can_cast(given.dtype, spec.dtype, "same_kind")):
            raise ValueError(
                f"an observation of dtype {given.dtype}; {self.environment.name} has {spec.dtype}: convert it first"
            )
        batch = given[None] if single else given
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            rows = np.array(batch, dtype=spec.dtype, order="C")  # torch may not share the caller's memory
        if rows.dtype != given.dtype:
            held = np.isfinite(rows) == np.isfinite(batch) if rows.dtype.kind == "f" else rows == batch
            if not held.all():
                raise ValueError(f"an observation with numbers that its dtype, {spec.dtype}, can't hold")
        return rows, single

    def _own_rows(self, observation: Any) -> tuple[NDArray[Any], bool] | None:
        """Encode observations of the environment's own space; None if they are arrays already."""
        encode = getattr(self.observation_space, "encode", None)
        if encode is None:
            return None
        space = encode.space
        kinds: tuple[type, ...] = (dict, tuple)
        if isinstance(space, Discrete):
            # Encoded rows are floats: whole numbers are choices, of which n would pass for a single row else.
            kinds = (int, np.integer)
            if isinstance(observation, np.ndarray) and observation.ndim < 2 and observation.dtype.kind in "iu":
                if observation.shape == (space.n,) and observation.sum() == 1 and set(observation.tolist()) == {0, 1}:
                    raise ValueError(
                        f"{space.n} whole numbers in an array: choices of {space}, or one choice that is one-hot? Give "
                        f"the former as a list, the latter as {self.environment.observation.dtype}"
                    )
                observation = observation.tolist()
        elif isinstance(space, Tuple):
            kinds = (dict, tuple, list)  # JSON has no tuples
        if isinstance(observation, np.ndarray):
            return None
        if space.contains(observation):
            return _encoded(encode, observation)[None], True
        several = isinstance(observation, list) and all(isinstance(each, kinds) for each in observation)
        if several and observation and all(space.contains(each) for each in observation):
            return np.stack([_encoded(encode, each) for each in observation]), False
        if isinstance(observation, dict) or (several and not self._is_encoded(observation)):
            raise ValueError(f"an observation that is not in {space}: correct its keys, types, shapes or bounds")
        return None

    def _is_encoded(self, observation: list[Any]) -> bool:
        """Return whether lists are rows of numbers, as they are encoded."""
        width = self.environment.observation.shape[0]
        return bool(observation) and all(isinstance(each, list) and len(each) == width for each in observation)

    @staticmethod
    def _actions(action: Tensor, single: bool) -> NDArray[Any]:
        actions: NDArray[Any] = action.cpu().numpy()
        return actions[0] if single else actions


def _require_finite(rows: NDArray[Any], spec: Spec) -> None:
    """Refuse rows with a number that is not finite, from which every network computes some action; name the first."""
    if rows.dtype.kind != "f" or np.isfinite(rows).all():
        return
    place = np.argwhere(~np.isfinite(rows))[0].tolist()
    row, number, where = place[0], place[-1], f"place {place[1:]}"
    for leaf in spec.leaves:
        if number < leaf.width:
            where = f"number {number} of leaf '{leaf.name}'"
            break
        number -= leaf.width
    raise ValueError(
        f"an observation with {rows[tuple(place)]} (row {row}, {where}), expected finite numbers: correct what gives it"
    )


def _encoded(encode: Any, observation: Any) -> NDArray[Any]:
    """Encode an observation that is in the environment's space, which takes lists as the numbers of its own types."""
    if _has_fractions(encode.space, observation):
        raise ValueError(f"an observation with a fraction where {encode.space} has whole numbers: convert it first")
    encoded: NDArray[Any] = encode(observation)
    return encoded


def _has_fractions(space: Space[Any], value: Any) -> bool:
    if isinstance(space, Dict):
        return any(_has_fractions(part, value[name]) for name, part in space.items())
    if isinstance(space, Tuple):
        return any(map(_has_fractions, space, value))
    given = np.asarray(value) if isinstance(space, Box) and space.dtype.kind in "iu" else None
    return given is not None and given.dtype.kind == "f" and bool((given != np.rint(given)).any())
