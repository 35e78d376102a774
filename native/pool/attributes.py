"""The part of a vector environment other than steps and resets: attributes, generators, states, a spec.

The base of `Pool`, which has the environments themselves.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native import _core
from penstock.native.interface import EnvironmentPool
from penstock.native.pool import mujoco_library
from penstock.native.pool.arguments import configuration, core_values, without_ranges
from penstock.native.pool.generators import generator_of, words_of
from penstock.native.pool.spaces import single_spec, vector_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium.envs.registration import EnvSpec
    from numpy.typing import NDArray

    from penstock.native.pool.resources import Resources


_SAVED = ("elapsed_steps", "episode_id", "episode_return")
_POOL_ATTRIBUTES = {
    "np_random": "np_random",
    "np_random_seed": "np_random_seed",
    "observation_space": "single_observation_space",
    "action_space": "single_action_space",
    "render_mode": "render_mode",
    "metadata": "metadata",
}


def get_attribute(pool: AttributesMixin, name: str) -> tuple[Any, ...]:
    """Return one value for each environment.

    Raises:
        AttributeError: There is no such attribute; the message lists the existing ones.
        RuntimeError: It belongs to an episode, and nothing was reset yet.
    """
    if name in pool.config:
        return tuple(pool.config[name].tolist())
    if name in _POOL_ATTRIBUTES:
        value = getattr(pool, _POOL_ATTRIBUTES[name])
        return value if name.startswith("np_random") else (value,) * pool.num_envs
    if name == "spec":
        return tuple(
            single_spec(pool.environment, pool.time_limit, {**_configuration_of(pool, row), **pool.resources})
            for row in range(pool.num_envs)
        )
    column = _column(name, pool.saved_names)
    if column is None and name != "state":
        raise AttributeError(
            f"environments of {pool} have no attribute {name!r}; there are: {', '.join(attribute_names(pool))}"
        )
    saved = pool.save()
    if column is None:
        return tuple(_whole_state(saved))
    return tuple(saved[column].tolist()) if saved[column].ndim == 1 else tuple(saved[column])


def set_attribute(pool: AttributesMixin, name: str, values: Any) -> None:
    """Change an attribute for the running environments: a list, tuple or array of one value each, or one for all.

    Raises:
        AttributeError: There is no such attribute that can be changed.
        ValueError: The values' number, type, shape or content; nothing has then changed.
        RuntimeError: It belongs to an episode, and nothing was reset yet.
    """
    if isinstance(values, (list, tuple)) and len(values) != pool.num_envs:
        raise ValueError(
            f"{name} needs one value for all environments or a list of one for each: got {len(values)} for "
            f"{pool.num_envs} environments"
        )
    if name in pool.config:
        pool.configure(**{name: values})
        return
    column = _column(name, pool.saved_names)
    if name not in {"np_random", "state"} and (column is None or column.startswith("report.")):
        fields = [of_state for of_state in pool.saved_names if of_state.startswith("state.")]
        settable = [*pool.config, *(field.partition(".")[2] for field in fields), *_SAVED, "np_random", "state"]
        raise AttributeError(f"{name!r} of {pool} cannot be set; these can: {', '.join(settable)}")
    saved = pool.save()
    if name == "np_random":
        width = saved["generator"].shape[1]
        each = values if isinstance(values, (list, tuple)) else [values] * pool.num_envs
        saved["generator"] = np.array([words_of(value, width) for value in each], dtype=np.uint64)
    elif column is None:
        _put_whole_state(saved, _rows(name, values, _whole_state(saved)))
    else:
        saved[column] = _rows(name, values, saved[column])
    pool.restore(saved)


def attribute_names(pool: AttributesMixin) -> tuple[str, ...]:
    """Return the names that `get_attr` knows."""
    fields = [name.partition(".")[2] for name in pool.saved_names if name.startswith(("state.", "report."))]
    return (*pool.config, *fields, *_SAVED, "state", "spec", *_POOL_ATTRIBUTES)


def is_environments_own(pool: AttributesMixin, name: str) -> bool:
    """Return whether the environments have the attribute, rather than the pool for them."""
    return name in pool.config or name == "state" or _column(name, pool.saved_names) is not None


def _column(name: str, saved_names: Sequence[str]) -> str | None:
    if name in _SAVED:
        return name
    return next((column for column in (f"state.{name}", f"report.{name}") if column in saved_names), None)


def _state_columns(saved: dict[str, NDArray[Any]]) -> list[str]:
    return [name for name in saved if (name == "state" or name.startswith("state.")) and saved[name].dtype != np.bool_]


def _whole_state(saved: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return the state of each environment as one row, [num_envs, values], in the order in which it is declared."""
    columns = [saved[column] for column in _state_columns(saved)]
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1, dtype=np.float64)


def _put_whole_state(saved: dict[str, NDArray[Any]], rows: NDArray[Any]) -> None:
    first = 0
    for column in _state_columns(saved):
        shape, dtype = saved[column].shape, saved[column].dtype
        width = int(np.prod(shape[1:]))
        saved[column] = np.ascontiguousarray(rows[:, first : first + width].reshape(shape), dtype=dtype)
        first += width


def _rows(name: str, values: Any, like: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(values)
    # A list has a value for each environment, so four numbers are not one state of four numbers for all of them.
    shapes = [like.shape] if isinstance(values, (list, tuple)) else [like.shape, like.shape[1:]]
    if array.dtype.kind not in "biuf" or array.shape not in shapes:
        raise ValueError(
            f"{name} needs numbers of shape {like.shape}, or an array of {like.shape[1:]} for all environments; got "
            f"{'a list of ' if isinstance(values, (list, tuple)) else ''}{array.dtype} of {array.shape}"
        )
    if like.dtype.kind in "biu" and not np.array_equal(array.astype(like.dtype), array):
        raise ValueError(f"{name} needs {like.dtype}: whole numbers that it holds, got {values!r}")
    return np.ascontiguousarray(np.broadcast_to(array, like.shape), dtype=like.dtype)


def _configuration_of(pool: AttributesMixin, row: int) -> dict[str, float]:
    return {name: values[row].item() for name, values in pool.config.items()}


class AttributesMixin(EnvironmentPool):
    """A vector environment whose environments have attributes: those that `native/pool/attributes.py` lists."""

    config: dict[str, NDArray[Any]]
    """Every field of the configuration, one value an environment."""
    resources: Resources
    """The settings of the whole pool that are text."""
    time_limit: int | None
    """Steps after which the pool truncates; an environment may do so earlier."""
    num_threads: int
    batch_size: int
    _deterministic: bool
    _thread_affinity: bool
    _core: _core.Pool
    _seeded: NDArray[np.bool_]
    _seeds: list[int | None]
    records_episode_statistics: bool

    @property
    def np_random(self) -> Any:
        """Return a tuple of copies of the generators: drawing from them moves no environment. They can be set."""
        if not self._seeded.any():
            return tuple(np.random.default_rng(self._drawn_seed(index)) for index in range(self.num_envs))
        return tuple(generator_of(words) for words in self._core.save()["generator"])

    @np_random.setter
    def np_random(self, value: Any) -> None:
        self.set_attr("np_random", value)

    @property
    def np_random_seed(self) -> Any:
        """Return a tuple of each environment's latest or next seed; -1 after its generator was set or restored."""
        return tuple(self._drawn_seed(index) for index in range(self.num_envs))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Render each environment with `render`, or return its attribute `name`, as `get_attr`."""
        if name == "render":
            return self.render()
        if name not in attribute_names(self):
            raise AttributeError(
                f"environments of {self} have no method {name!r}: they are C++, with 'render' and the attributes "
                f"{', '.join(attribute_names(self))}"
            )
        if args or kwargs:
            raise TypeError(f"{name} of {self} is an attribute and takes no arguments; change it with set_attr")
        return self.get_attr(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return one value for each environment; `native/pool/attributes.py` lists the names, and so does the error."""
        return get_attribute(self, name)

    def set_attr(self, name: str, values: Any) -> None:
        """Change the configuration, the state or the generators of the running environments.

        Args:
            name: As in `get_attr`.
            values: A list, tuple or array of one value for each environment, or one value for all.

        Raises:
            AttributeError: No such attribute can be set.
            ValueError: The values are invalid; nothing has then changed.
        """
        set_attribute(self, name, values)

    def configure(self, **fields: Any) -> None:
        """Change fields of the configuration for the running environments: one value, or one for each of them.

        Raises:
            ValueError: As `native.make`; nothing has then changed.
        """
        defaults = _core.describe(self.environment["id"])["config"]
        environment_id, model = self.environment["id"], self.resources.get("xml_file")
        numbered = mujoco_library.with_body_numbers(environment_id, fields, None if model is None else str(model))
        given = configuration(environment_id, numbered, defaults, self.num_envs)
        named = without_ranges(numbered, defaults)
        changed = {name: given[name] if name in named else values for name, values in self.config.items()}
        self._core.configure(core_values(changed))
        self.config = changed
        self.spec = self._make_spec()

    def render(self) -> tuple[Any, ...]:
        """Return one frame per environment, uint8 [height, width, 3]; the pool must be made with a `render_mode`."""
        raise RuntimeError(f"{self} can't render: make it with render_mode='rgb_array'")

    @property
    def saved_names(self) -> tuple[str, ...]:
        """Return the names of the arrays that `save` gives, which a pool has before its first reset too."""
        return self._core.columns

    def save(self) -> dict[str, NDArray[Any]]:
        """Return everything that the next step depends on, as named arrays [num_envs, ...]; same state, same bytes."""
        return self._core.save()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a saved state, bit for bit. The configuration must be the one it was saved with.

        Raises:
            ValueError: An array is missing, unknown, of another type or shape, or holds an impossible value; the pool
                is then as it was.
        """
        self._core.restore(dict(state))
        self._seeded[:] = True
        self._seeds = [-1] * self.num_envs

    def _make_spec(self) -> EnvSpec | None:
        config = {name: _plain(values) for name, values in self.config.items()}
        return vector_spec(
            self.environment,
            self.time_limit,
            {**config, **self.resources},
            num_envs=self.num_envs,
            num_threads=self.num_threads,
            autoreset_mode=self.autoreset_mode.value,
            record_episode_statistics=self.records_episode_statistics,
            render_mode=self.render_mode,
            **self._settings_beside_defaults(),
        )

    def _settings_beside_defaults(self) -> dict[str, object]:
        given = {
            "batch_size": (self.batch_size, self.num_envs),
            "deterministic": (self._deterministic, False),
            "thread_affinity": (self._thread_affinity, False),
        }
        return {name: value for name, (value, default) in given.items() if value != default}

    def _drawn_seed(self, index: int) -> int:
        seed = self._seeds[index]
        if seed is None:
            seed = self._seeds[index] = secrets.randbits(64)
        return seed


def _plain(values: NDArray[Any]) -> Any:
    """Return one value if all are the same, else a list."""
    return values[0].item() if (values == values[0]).all() else values.tolist()
