"""A pool over a vector environment that gives its state: saved as arrays, and restored without repeating any action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock.native.adapters.vector_env import WrappedPool
from penstock.native.interface import StateNotSupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_COUNTS = {"count.episode_id": "episode_id", "count.length": "length", "count.return": "total"}


class StatePool(WrappedPool):
    """Environments of a simulator whose state is arrays. Made by `native.make`.

    `vector_env` has `arrays`, `take` and `observation`, as `ArrayVector`. A state is that after a round, or of episodes
    that have just begun; one that was saved is restored in any pool of the same environment, size and software.
    """

    restores_by_replay = False

    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `seeds[b]` and start its first episode, with the id 0; errors as `WrappedPool`."""
        super().reset_ids(seeds)
        self._record = None

    def save(self) -> dict[str, NDArray[Any]]:
        """Return everything that the next step depends on, as arrays `[num_envs, ...]`.

        Raises:
            RuntimeError: A round is open, or nothing was reset yet.
        """
        with self._alone():
            self._be_ready()
            if self._round is not None:
                raise RuntimeError("a round is open: end_round() before save()")
            source: Any = self.vector_env
            counts = {name: getattr(self._counts, field).copy() for name, field in _COUNTS.items()}
            saved: dict[str, NDArray[Any]] = {**source.arrays(), **counts, "count.over": self._over.copy()}
            return saved

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a saved state, bit for bit.

        Raises:
            StateNotSupportedError: It is not a state of this environment, with this number of copies and these versions
                of its library; the pool is then as it was.
        """
        with self._alone():
            expected = {name: getattr(self._counts, field) for name, field in _COUNTS.items()} | {
                "count.over": self._over
            }
            if missing := sorted(expected.keys() - state.keys()):
                raise StateNotSupportedError(f"the state of {self._source.id} lacks {', '.join(missing)}")
            for name, array in expected.items():
                found = np.asarray(state[name])
                if (found.shape, found.dtype) != (array.shape, array.dtype):
                    raise StateNotSupportedError(
                        f"the state of {self._source.id}: {name} is {found.dtype}{list(found.shape)}, expected "
                        f"{array.dtype}{list(array.shape)}"
                    )
            is_over = bool(np.asarray(state["own.over"]).any()) if "own.over" in state else False
            if is_over and self.autoreset_mode == AutoresetMode.SAME_STEP:
                raise StateNotSupportedError(
                    f"the state of {self._source.id} has ended episodes, and a pool with autoreset_mode='SameStep' "
                    f"never has one: restore it in a pool with autoreset_mode='NextStep'"
                )
            mode = self.autoreset_mode if is_over else AutoresetMode.SAME_STEP
            source: Any = self._source.build(mode)
            try:
                source.take({name: np.asarray(of) for name, of in state.items() if not name.startswith("count.")})
            except BaseException as error:
                source.close()
                if not isinstance(error, ValueError):
                    raise
                raise StateNotSupportedError(
                    f"the state of {self._source.id} is another environment's, or another version's: {error}"
                ) from error
            self._end_environments()
            self._use(source, mode)
            self._round, self._record = None, None
            for name, field in _COUNTS.items():
                setattr(self._counts, field, np.array(state[name], dtype=expected[name].dtype))
            self._over = np.array(state["count.over"])
            self._current = source.observation()

    def _be_in(self, mode: AutoresetMode) -> None:
        """Change the mode between episodes' ends, as nothing of a state belongs to it."""
        if self._mode != mode and self._current is not None and not self._over.any():
            source: Any = self.vector_env
            arrays, current, seeds = source.arrays(), self._current, self._seeds
            self._rebuild(mode)
            rebuilt: Any = self.vector_env
            rebuilt.take(arrays)
            self._current, self._seeds = current, seeds
            return
        super()._be_in(mode)
