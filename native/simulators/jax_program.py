"""A batch of functional environments as three compiled functions of JAX: begin, step, and replace what ended.

An environment is one as Brax's: `reset(key)` and `step(state, action)` return a state with `obs`, `reward` and `done`.
All of it is arrays, so that it can be saved; compiled once, whatever is made of it later.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


class JaxProgram:
    """The compiled functions of `num_envs` environments. The states that they take and return are pytrees of arrays.

    `keys` are uint32 [num_envs, 2], the seeds of the environments; an episode's own key is that with its number folded
    in.
    """

    def __init__(self, env: Any, num_envs: int, observe: Callable[[Any], Any]) -> None:
        """Trace nothing yet: each function is compiled when it is first called.

        Args:
            env: The functional environment.
            num_envs: Length of every array's first axis.
            observe: Returns the array of a state's `obs`, which may be a dictionary.
        """
        jax = jax_with_cache()

        self.num_envs = num_envs
        self._jax = jax

        def fresh(keys: Any, episodes: Any) -> Any:
            folded = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(keys), episodes)
            with _quiet():
                return _plain(jax, jax.vmap(env.reset)(jax.random.key_data(folded)))

        def step(state: Any, action: Any) -> Any:
            with _quiet():
                stepped = _plain(jax, jax.vmap(env.step)(state, action))
            # Both branches of an episode's end must be of the types with which the state began.
            return jax.tree.map(lambda new, old: new.astype(old.dtype), stepped, state)

        def replace(state: Any, keys: Any, episodes: Any, over: Any) -> Any:
            def chosen(new: Any, old: Any) -> Any:
                mask = over.reshape(over.shape + (1,) * (new.ndim - 1))
                return jax.numpy.where(mask, new.astype(old.dtype), old)

            return jax.tree.map(chosen, fresh(keys, episodes), state)

        self._fresh, self._step, self._replace = jax.jit(fresh), jax.jit(step), jax.jit(replace)
        self._observe = observe
        shapes = jax.eval_shape(fresh, np.zeros((num_envs, 2), np.uint32), np.zeros(num_envs, np.int32))
        leaves, self._tree = jax.tree.flatten(shapes)
        self.leaves: list[tuple[tuple[int, ...], np.dtype[Any]]] = [
            (tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves
        ]
        """Shape and dtype of every array of a state, in the order of `arrays`."""
        seen = observe(shapes.obs)
        self.observation_shape: tuple[int, ...] = tuple(seen.shape[1:])
        self.observation_dtype: np.dtype[Any] = np.dtype(seen.dtype)

    def fresh(self, keys: NDArray[np.uint32], episodes: NDArray[np.int32]) -> Any:
        """Return the state of new episodes."""
        return self._fresh(keys, episodes)

    def step(self, state: Any, action: NDArray[np.float32]) -> Any:
        """Return the state after one step of all."""
        return self._step(state, action)

    def replace(
        self, state: Any, keys: NDArray[np.uint32], episodes: NDArray[np.int32], over: NDArray[np.bool_]
    ) -> Any:
        """Return the state with new episodes for the environments in `over`."""
        return self._replace(state, keys, episodes, over)

    def observation(self, state: Any) -> NDArray[Any]:
        """Return a state's observations, `[num_envs, ...]`, without a copy: read only."""
        return np.from_dlpack(self._observe(state.obs))

    @staticmethod
    def rewards(state: Any) -> NDArray[np.float32]:
        """Return a state's rewards `[num_envs]`, without a copy: read only."""
        reward: NDArray[Any] = np.from_dlpack(state.reward)
        return reward.astype(np.float32, copy=False)

    @staticmethod
    def dones(state: Any) -> NDArray[np.bool_]:
        """Return for each environment whether its episode has ended."""
        done: NDArray[np.bool_] = np.asarray(np.from_dlpack(state.done)) != 0
        return done

    def arrays(self, state: Any) -> list[NDArray[Any]]:
        """Return copies of all arrays of a state."""
        return [np.array(leaf) for leaf in self._jax.tree.leaves(state)]

    def state_of(self, arrays: list[NDArray[Any]]) -> Any:
        """Return the state that has such arrays, which are copied."""
        return self._jax.tree.unflatten(self._tree, [self._jax.numpy.array(array) for array in arrays])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ignore what a library deprecates in its own code, while it is traced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _plain(jax: Any, state: Any) -> Any:
    """Return a state whose numbers have types of their own, as those that were restored have."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)


def jax_with_cache() -> Any:
    """Import JAX, and let it keep what it compiles in the user's cache folder: every stage has new processes."""
    import jax  # noqa: PLC0415  (an optional extra)

    if jax.config.jax_compilation_cache_dir is None:
        with contextlib.suppress(OSError, RuntimeError):  # a user without a home folder compiles each time
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            folder = Path(os.environ.get("PENSTOCK_CACHE_DIR") or Path(home) / "penstock") / "jax"
            # Its files are executed: no other user may write to it.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            jax.config.update("jax_compilation_cache_dir", str(folder))
    return jax
