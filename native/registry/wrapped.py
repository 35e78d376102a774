"""The libraries whose environments other code steps: by the beginning of an id, what makes a source of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.native.adapters.atari import PREFIX as ATARI
from penstock.native.adapters.atari import atari_ids, atari_source, atari_types
from penstock.native.adapters.dm_control import PREFIX as DM_CONTROL
from penstock.native.adapters.dm_control import dm_control_ids, dm_control_source, dm_control_types
from penstock.native.adapters.envpool import PREFIX as ENVPOOL
from penstock.native.adapters.envpool import envpool_ids, envpool_source, envpool_types
from penstock.native.adapters.gymnasium import PREFIX as GYMNASIUM
from penstock.native.adapters.gymnasium import gymnasium_knows, gymnasium_source, gymnasium_types, registered_ids
from penstock.native.adapters.minatar import PREFIX as MINATAR
from penstock.native.adapters.minatar import minatar_ids, minatar_source, minatar_types
from penstock.native.adapters.minigrid import PREFIX as MINIGRID
from penstock.native.adapters.minigrid import minigrid_ids, minigrid_source, minigrid_types
from penstock.native.simulators.brax import PREFIX as BRAX
from penstock.native.simulators.brax import brax_ids, brax_source, brax_types
from penstock.native.simulators.playground import PREFIX as MJX
from penstock.native.simulators.playground import playground_ids, playground_source, playground_types
from penstock.native.simulators.warp import PREFIX as WARP
from penstock.native.simulators.warp import warp_ids, warp_source
from penstock.native.sockets.source import PREFIX as SOCKET
from penstock.native.sockets.source import socket_source
from penstock.native.teams.pettingzoo import PREFIX as PETTINGZOO
from penstock.native.teams.pettingzoo import pettingzoo_ids, pettingzoo_source, pettingzoo_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.native.adapters.one_array import Encoding
    from penstock.native.adapters.vector_env import WrappedSource

SettingTypes: TypeAlias = "dict[str, type | None]"
"""The type of a value by the name of its setting; None if it may be any."""
_Usual: TypeAlias = "tuple[str, int, int, int | None, Mapping[str, Any]]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of `make` that say which environments are wanted; checked, but for the settings."""

    environment_id: str
    num_envs: int
    num_threads: int
    max_episode_steps: int | None
    settings: Mapping[str, Any]
    encoding: Encoding

    @property
    def usual(self) -> _Usual:
        """Return the arguments that the sources of all libraries have in common."""
        return self.environment_id, self.num_envs, self.num_threads, self.max_episode_steps, self.settings


@dataclass(frozen=True, slots=True)
class WrappedFamily:
    """The environments whose ids begin alike, and that one library steps."""

    prefix: str
    source: Callable[[Wanted], WrappedSource]
    """Raises ValueError and ImportError as `make`."""
    types: Callable[[str], SettingTypes]
    """Raises ValueError as `setting_types`."""
    ids: Callable[[], Iterable[str]]
    """Imports the library; raises ValueError where it is not installed."""
    gives_state: bool = False
    """True if the library gives its state, which a pool then saves and restores."""
    by_gymnasium: bool = False
    """True if Gymnasium makes each environment, so that its wrappers can be put around it."""
    encodes: bool = False
    """True if observations may be structured, so that `structured` and `action_mask` have a meaning."""
    packages: tuple[str, ...] = ()
    """Names of the installed packages on which episodes depend; Gymnasium's ids have each their own."""


def _plainly(
    make: Callable[[str, int, int, int | None, Mapping[str, Any]], WrappedSource],
) -> Callable[[Wanted], WrappedSource]:
    return lambda wanted: make(*wanted.usual)


def _encoded(
    make: Callable[[str, int, int, int | None, Mapping[str, Any], Encoding], WrappedSource],
) -> Callable[[Wanted], WrappedSource]:
    return lambda wanted: make(*wanted.usual, wanted.encoding)


def _pettingzoo(wanted: Wanted) -> WrappedSource:
    environment_id, num_envs, _, max_episode_steps, settings = wanted.usual
    structured = wanted.encoding.structured
    return pettingzoo_source(environment_id, num_envs, max_episode_steps, settings, structured=structured)


def _gymnasium(wanted: Wanted) -> WrappedSource:
    within = replace(wanted, environment_id=wanted.environment_id.removeprefix(GYMNASIUM))
    return gymnasium_source(*within.usual, encoding=wanted.encoding)


def _none(_: str) -> SettingTypes:
    return {}


_GYMNASIUM = WrappedFamily(GYMNASIUM, _gymnasium, gymnasium_types, registered_ids, by_gymnasium=True, encodes=True)
_FAMILIES = (
    WrappedFamily(ATARI, _plainly(atari_source), atari_types, atari_ids, packages=("ale-py",)),
    WrappedFamily(
        MINATAR,
        _encoded(minatar_source),
        minatar_types,
        minatar_ids,
        by_gymnasium=True,
        encodes=True,
        packages=("minatar", "gymnasium"),
    ),
    WrappedFamily(
        MINIGRID,
        _encoded(minigrid_source),
        minigrid_types,
        minigrid_ids,
        by_gymnasium=True,
        encodes=True,
        packages=("minigrid", "gymnasium"),
    ),
    WrappedFamily(ENVPOOL, _encoded(envpool_source), envpool_types, envpool_ids, encodes=True, packages=("envpool",)),
    WrappedFamily(
        DM_CONTROL,
        _encoded(dm_control_source),
        dm_control_types,
        dm_control_ids,
        by_gymnasium=True,
        encodes=True,
        packages=("dm-control", "mujoco", "gymnasium"),
    ),
    WrappedFamily(PETTINGZOO, _pettingzoo, pettingzoo_types, pettingzoo_ids, packages=("pettingzoo", "mpe2")),
    WrappedFamily(SOCKET, _encoded(socket_source), _none, tuple, encodes=True),
    WrappedFamily(
        BRAX, _plainly(brax_source), brax_types, brax_ids, gives_state=True, packages=("brax", "mujoco-mjx", "jax")
    ),
    WrappedFamily(
        WARP,
        _plainly(warp_source),
        _none,
        warp_ids,
        gives_state=True,
        packages=("mujoco-warp", "warp-lang", "mujoco", "gymnasium"),
    ),
    WrappedFamily(
        MJX,
        _plainly(playground_source),
        playground_types,
        playground_ids,
        gives_state=True,
        packages=("playground", "mujoco-mjx", "jax"),
    ),
    _GYMNASIUM,
)


def named_family(environment_id: str) -> WrappedFamily | None:
    """Return the family that an id names by its beginning; None if it names none."""
    return next((family for family in _FAMILIES if environment_id.startswith(family.prefix)), None)


def meant_family(environment_id: str) -> WrappedFamily | None:
    """Return the family that an id would name by its beginning in other capitals; None if it names one, or none."""
    lower = environment_id.lower()
    alike = (family for family in _FAMILIES if lower.startswith(family.prefix.lower()))
    return next(alike, None) if named_family(environment_id) is None else None


def family_of(environment_id: str) -> WrappedFamily | None:
    """Return the family of an id that this package does not step; None if no library knows it."""
    named = named_family(environment_id)
    return _GYMNASIUM if named is None and gymnasium_knows(environment_id) else named
