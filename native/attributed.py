"""What a vector environment has beside steps and resets: attributes of each environment, generators, states, a spec.

The base of `Pool`, which has the environments themselves.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from native.attributes import attribute_names, get_attribute, set_attribute
from native.configuration import configuration, core_values
from native.faces import EnvironmentPool
from native.generators import generator_of
from native.specs import vector_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.envs.registration import EnvSpec
    from numpy.typing import NDArray

    from native import _core


class Attributed(EnvironmentPool):
    """A vector environment whose environments have attributes: those that `native/attributes.py` lists."""

    config: dict[str, NDArray[Any]]
    """Every field of the configuration, one value an environment."""
    num_threads: int
    _core: _core.Pool
    _seeded: NDArray[np.bool_]
    _seeds: list[int | None]
    records_episode_statistics: bool

    @property
    def np_random(self) -> Any:
        """A tuple of each environment's generator. They are copies: drawing moves no environment; they can be set."""
        if not self._seeded.any():
            return tuple(np.random.default_rng(self._drawn_seed(index)) for index in range(self.num_envs))
        return tuple(generator_of(words) for words in self._core.save()["generator"])

    @np_random.setter
    def np_random(self, value: Any) -> None:
        self.set_attr("np_random", value)

    @property
    def np_random_seed(self) -> Any:
        """A tuple of what each environment was seeded with, or will be; -1 after its generator was set or restored."""
        return tuple(self._drawn_seed(index) for index in range(self.num_envs))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """`render` each environment, or its attribute `name`, as `get_attr`."""
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
        """One value for each environment; `native/attributes.py` lists the names, and so does the error."""
        return get_attribute(self, name)

    def set_attr(self, name: str, values: Any) -> None:
        """Change the configuration, the state or the generators of the running environments.

        Args:
            name: As in `get_attr`.
            values: A list, tuple or array of one value for each environment, or one value for all.

        Raises:
            AttributeError: No such attribute can be set.
            ValueError: The values cannot be; nothing has then changed.
        """
        set_attribute(self, name, values)

    def configure(self, **fields: Any) -> None:
        """Change fields of the configuration for the running environments: one value, or one for each of them.

        Raises:
            ValueError: As `native.make`; nothing has then changed.
        """
        defaults = {name: values.dtype.type(0).item() for name, values in self.config.items()}
        given = configuration(self.environment["id"], fields, defaults, self.num_envs)
        changed = {name: given[name] if name in fields else values for name, values in self.config.items()}
        self._core.configure(core_values(changed))
        self.config = changed
        self.spec = self._own_spec()

    def render(self) -> tuple[Any, ...]:
        """One frame for each environment, uint8 [height, width, 3]; the pool must be made with a `render_mode`."""
        raise RuntimeError(f"{self} draws nothing: make it with render_mode='rgb_array'")

    @property
    def saved_names(self) -> tuple[str, ...]:
        """The names of the arrays that `save` gives, which a pool has before its first reset too."""
        return self._core.columns

    def save(self) -> dict[str, NDArray[Any]]:
        """Everything that the next step depends on, as named arrays [num_envs, ...]; same state, same bytes."""
        return self._core.save()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a saved state, bit for bit. The configuration must be the one it was saved with.

        Raises:
            ValueError: An array is missing, unknown, of another type or shape, or holds an impossible value; the pool
                is then as it was.
        """
        self._core.restore(dict(state))
        self._seeded[:] = True
        self._seeds = [-1] * self.num_envs

    def _own_spec(self) -> EnvSpec | None:
        config = {name: _plain(values) for name, values in self.config.items()}
        return vector_spec(
            self.environment,
            config,
            num_envs=self.num_envs,
            num_threads=self.num_threads,
            autoreset_mode=self.autoreset_mode.value,
            record_episode_statistics=self.records_episode_statistics,
            render_mode=self.render_mode,
        )

    def _drawn_seed(self, index: int) -> int:
        seed = self._seeds[index]
        if seed is None:
            seed = self._seeds[index] = secrets.randbits(64)
        return seed


def _plain(values: NDArray[Any]) -> Any:
    """One value if all are the same, else a list."""
    return values[0].item() if (values == values[0]).all() else values.tolist()
