"""Makes pools by id, and checks every argument: errors name the expectation."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import AutoresetMode

from penstock.native import _core
from penstock.native.adapters.atari import PREFIX as ATARI
from penstock.native.adapters.atari import AtariBatches, atari_source
from penstock.native.adapters.dm_control import PREFIX as DM_CONTROL
from penstock.native.adapters.dm_control import envpool_twin
from penstock.native.adapters.gymnasium import gymnasium_knows
from penstock.native.adapters.minigrid import PREFIX as MINIGRID
from penstock.native.adapters.one_array import Encoding
from penstock.native.adapters.vector_env import WrappedPool
from penstock.native.pool import mujoco_library, task_libraries
from penstock.native.pool.arguments import configuration, settable, similar_ids, where_to_look
from penstock.native.pool.control_suite import PREFIX as CONTROL_SUITE
from penstock.native.pool.pool import Pool
from penstock.native.pool.rendering_pool import RenderingPool
from penstock.native.pool.resources import resource_types, without_resources
from penstock.native.registry.wrapped import SettingTypes, Wanted, family_of, meant_family, named_family
from penstock.native.simulators.mujoco_pixels import PIXEL_TYPES, View, pixels_source, without_view
from penstock.native.simulators.state_pool import StatePool
from penstock.native.teams.pettingzoo import PREFIX as PETTINGZOO

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.native.adapters.one_array import MaskSource
    from penstock.native.adapters.vector_env import WrappedSource
    from penstock.native.interface import EnvironmentPool

_TOY = "toy/"
"""Beginning of the ids of Gymnasium's toy text that this package steps."""

unknown_id_hooks: list[Callable[[], object]] = []
"""Hooks that are called for an unknown id, which they may then load."""


def environment_ids() -> tuple[str, ...]:
    """Return every id that `make` takes here; those that need a package are among them where it is installed."""
    return tuple(sorted({*_core.environment_ids(), *task_libraries.available_ids()}))


def make(
    id: str,  # noqa: A002
    num_envs: int,
    num_threads: int = 1,
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    *,
    record_episode_statistics: bool = False,
    render_mode: str | None = None,
    thread_affinity: bool = False,
    batch_size: int | None = None,
    deterministic: bool = False,
    one_array: bool = False,
    one_action: bool = False,
    structured: bool = False,
    action_mask: MaskSource | None = None,
    **config: Any,
) -> EnvironmentPool:
    """Make a pool of `num_envs` environments.

    Args:
        id: One of `environment_ids()`; an Atari game as `ALE/Pong-v5` (needs ale-py), a smaller one as
            `MinAtar/Breakout-v1` (needs MinAtar), a maze as `minigrid/MiniGrid-DoorKey-5x5-v0` (needs MiniGrid), one
            of EnvPool's as `envpool/CartpoleBalance-v1` (needs EnvPool), a task of dm_control's suite as
            `dmc/cartpole-balance`, stepped by this package (needs dm_control's files), or as
            `dm_control/cartpole-balance`, stepped by dm_control (needs MuJoCo 3); an environment of several agents as
            `pettingzoo/mpe/simple_spread_v3` (needs PettingZoo); the environment of a server as `socket/Name`
            (with `address`; `docs/socket.md`); or an id of Gymnasium's registry, as it is or after `gymnasium/`, which
            also chooses Gymnasium where both know the id. `penstock envs` lists them.
        num_envs: How many; row b of every array is environment b.
        num_threads: Threads that step, the caller's included. Results are the same for any number.
        max_episode_steps: Truncates episodes; None takes the environment's own limit, -1 means that there is none.
        autoreset_mode: What follows the end of an episode in `step`, as `gymnasium.vector.AutoresetMode`.
        record_episode_statistics: Whether infos carry `episode` where an episode ended, as Gymnasium's wrapper
            RecordEpisodeStatistics: return `r`, length `l`, seconds `t`.
        render_mode: 'rgb_array' for a pool that can `render`, where Gymnasium can draw the environment.
        thread_affinity: Whether each thread but the caller's stays on one of the CPUs that the process may use.
        batch_size: How many environments `recv` gives at a time, if the pool is stepped asynchronously; None takes all.
            Also of Atari games, which then only `async_reset`, `send` and `recv` step.
        deterministic: Whether `recv` gives batches in a fixed rotation instead of whichever are done first;
            `batch_size` must then divide `num_envs`.
        one_array: Whether environments of other libraries that observe Discrete, Tuple or Dict are made to observe one
            float array, as by the wrapper FlattenObservation: a choice is one-hot. All others observe one anyway.
        one_action: Whether environments of other libraries take one array as every action: choices from 0, and
            structured actions (MultiDiscrete, MultiBinary, a Box of integers, Dict, Tuple) as vectors of float32, as
            `environment["action"]` then lists their leaves. All others take one anyway.
        structured: With `one_array`, whether `EnvironmentPool.environment` describes the leaves of that array, each of
            which it then holds exactly: it is float32, or float64 if a leaf needs that. MiniGrid's are all but the
            mission's words. Also of PettingZoo's, whose array then has, leaf after leaf, those of all agents.
        action_mask: With `one_array`, where environments of other libraries give the mask of allowed choices, under the
            key `action_mask`: in the 'info' of every reset and step, or as part of a Dict 'observation'. The array
            begins with it then, as that of `ConnectFour-v0` does. None: nowhere.
        config: Fields of the environment's configuration, as one value or one for each environment. For Atari the
            settings of ale-py's AtariVectorEnv; for Gymnasium's the arguments of `gymnasium.make_vec`, of which
            `vectorization_mode` is 'sync', 'async' or 'vector_entry_point'.

    Raises:
        ValueError: An unknown id or field (the message lists those that exist), or an invalid value.
        ImportError: The environment needs a package that is not installed; the message says which.
    """
    _check_encoding(id, one_array=one_array, structured=structured, action_mask=action_mask)
    if id in mujoco_library.IDS:
        config, view = without_view(config)
        if view is not None:
            options = {"num_threads": num_threads, "max_episode_steps": max_episode_steps}
            given = {"batch_size": batch_size, "deterministic": deterministic or None, "render_mode": render_mode}
            source = _seen_as_pixels(id, view, num_envs, given, **options, thread_affinity=thread_affinity, **config)
            mode = _autoreset_mode(autoreset_mode)
            return StatePool(source, mode, record_episode_statistics=record_episode_statistics)
    if is_native(id):
        return make_native(
            id,
            num_envs,
            num_threads,
            max_episode_steps,
            autoreset_mode,
            record_episode_statistics=record_episode_statistics,
            render_mode=render_mode,
            thread_affinity=thread_affinity,
            batch_size=batch_size,
            deterministic=deterministic,
            **config,
        )
    _refuse_own_options(id, thread_affinity=thread_affinity, batch_size=batch_size, deterministic=deterministic)
    num_envs, num_threads, max_episode_steps = _counts(num_envs, num_threads, max_episode_steps)
    mode = _autoreset_mode(autoreset_mode)
    if render_mode is not None:
        config["render_mode"] = render_mode
    if batch_size is not None:
        batch_size = _batch_size(batch_size, num_envs, divides=False)
        games = atari_source(id, num_envs, num_threads, max_episode_steps, config, batch_size=batch_size)
        return AtariBatches(games, batch_size, mode, record_episode_statistics=record_episode_statistics)
    family = family_of(id)
    if family is None:
        raise ValueError(_unknown(id))
    wanted = Wanted(
        id,
        num_envs,
        num_threads,
        max_episode_steps,
        config,
        Encoding(one_array=one_array, structured=structured, action_mask=action_mask),
    )
    kind = StatePool if family.gives_state else WrappedPool
    return kind(family.source(wanted), mode, record_episode_statistics=record_episode_statistics, one_action=one_action)


def _seen_as_pixels(
    environment_id: str, view: View, num_envs: int, given: dict[str, Any], **options: Any
) -> WrappedSource:
    """Return one of MuJoCo's tasks whose observations are pictures; raises ValueError as `make`."""
    unfit = [name for name, value in given.items() if value not in (None, "rgb_array")]
    if unfit:
        raise ValueError(
            f"{unfit[0]} = {given[unfit[0]]!r}: with observation = 'pixels' a pool steps synchronously and renders "
            f"what is observed ('rgb_array'); leave it out"
        )
    return pixels_source(
        environment_id, view, lambda mode: make_native(environment_id, num_envs, autoreset_mode=mode, **options)
    )


def _refuse_own_options(
    environment_id: str, *, thread_affinity: bool, batch_size: int | None, deterministic: bool
) -> None:
    """Refuse options of the pools that this package steps itself; raises ValueError."""
    if deterministic or (batch_size is not None and not environment_id.startswith(ATARI)):
        option, others = ("deterministic", "") if deterministic else ("batch_size", " and Atari games")
        raise ValueError(
            f"{option} is for environments that this package steps{others}, not for {environment_id!r}; leave it out"
        )
    if thread_affinity:
        raise ValueError(
            f"thread_affinity places the threads of this package, which do not step {environment_id!r}; leave it out "
            f"(ale-py has thread_affinity_offset for its own)"
        )


def _check_encoding(id: str, *, one_array: bool, structured: bool, action_mask: str | None) -> None:  # noqa: A002
    """Refuse options of an encoded observation where nothing is encoded; raises ValueError."""
    if action_mask not in (None, "info", "observation"):
        raise ValueError(f"action_mask is {action_mask!r}, expected 'info', 'observation' or None")
    given = "structured = True" if structured else f"action_mask = {action_mask!r}" if action_mask else ""
    if given and not one_array:
        raise ValueError(f"{given} is about one array of numbers, expected one_array = True; set that too")
    if id.startswith(PETTINGZOO):
        if action_mask:
            raise ValueError(
                f"action_mask = {action_mask!r}: the masks of {id}, in its observations or infos, are in front of the "
                f"array anyway; leave it out"
            )
        return
    named = named_family(id)
    encodes = named.encodes if named else not is_native(id)
    if given and not encodes:
        twins = " or ".join(map(repr, _twins_with_parts(id, structured=structured)))
        other = f", or choose {twins}, the same environment stepped by another library" if twins else ""
        raise ValueError(
            f"{given}: {id} observes one array as it is, its mask in front if it has one; leave it out{other}"
        )


def _twins_with_parts(environment_id: str, *, structured: bool) -> list[str]:
    """Return the ids under which other libraries show an environment's parts, or its mask."""
    name = environment_id.removeprefix(_TOY)
    if not structured:
        return [name] if environment_id == f"{_TOY}Taxi-v4" else []
    if environment_id.startswith(CONTROL_SUITE):
        theirs = f"{DM_CONTROL}{environment_id.removeprefix(CONTROL_SUITE)}"
        return [envpool_twin(theirs), theirs]
    if environment_id.startswith("MiniGrid-"):
        return [f"{MINIGRID}{environment_id}"]
    return [name] if name != environment_id and gymnasium_knows(name) else []


def make_native(
    id: str,  # noqa: A002
    num_envs: int,
    num_threads: int = 1,
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    *,
    record_episode_statistics: bool = False,
    render_mode: str | None = None,
    thread_affinity: bool = False,
    batch_size: int | None = None,
    deterministic: bool = False,
    **config: Any,
) -> Pool:
    """Make a pool as `make` does, for one of `environment_ids()`, which this package steps itself."""
    if not is_native(id):
        raise ValueError(_unknown(id))
    num_envs, num_threads, max_episode_steps = _counts(num_envs, num_threads, max_episode_steps)
    if batch_size is not None:
        batch_size = _batch_size(batch_size, num_envs, divides=deterministic)
    fields, resources = without_resources(id, config)
    numbered = mujoco_library.with_body_numbers(id, fields, config.get("xml_file"))
    values = configuration(id, numbered, _core.describe(id)["config"], num_envs)
    kind = Pool if render_mode is None else partial(RenderingPool, render_mode=render_mode)
    return kind(
        id,
        num_envs,
        num_threads,
        max_episode_steps,
        _autoreset_mode(autoreset_mode),
        values,
        record_episode_statistics=record_episode_statistics,
        thread_affinity=thread_affinity,
        batch_size=batch_size,
        deterministic=deterministic,
        resources=resources,
    )


def is_native(environment_id: str) -> bool:
    """Return whether this package steps the environment itself; an installed package may bring it only now."""
    task_libraries.load_for(environment_id)
    if environment_id not in _core.environment_ids() and named_family(environment_id) is None:
        for bring_more in unknown_id_hooks:
            bring_more()
    return environment_id in _core.environment_ids()


def takes_wrappers(environment_id: str) -> bool:
    """Return whether Gymnasium steps the environment, so that its wrappers can be put around each."""
    named = named_family(environment_id)
    return not is_native(environment_id) and (named is None or named.by_gymnasium)


def setting_types(environment_id: str) -> SettingTypes:
    """Return the names that `make` takes as configuration, each with the type of its value; None if it may be any.

    What an environment accepts beyond that only it knows.

    Raises:
        ValueError: No such id, or what it needs is not installed.
    """
    if is_native(environment_id):
        fields = {
            name: type(default)
            for name, default in settable(environment_id, _core.describe(environment_id)["config"]).items()
        }
        pixels = PIXEL_TYPES if environment_id in mujoco_library.IDS else {}
        return {**fields, **resource_types(environment_id), **pixels}
    family = family_of(environment_id)
    if family is None:
        raise ValueError(_unknown(environment_id))
    return family.types(environment_id)


def _unknown(environment_id: str) -> str:
    said, known = f"no environment is called {environment_id!r}", [environment_ids(), [*gymnasium.registry]]
    if meant := meant_family(environment_id):
        try:
            known.insert(0, [*meant.ids()])
        except ValueError as error:  # it is not installed
            return f"{said}; if one whose id begins with {meant.prefix!r} is meant: {error}"
    near = dict.fromkeys(name for ids in known for name in similar_ids(environment_id, ids))
    space = environment_id[: environment_id.find("/") + 1]
    is_listed = any(name.lower().startswith(space.lower()) for ids in known[:-1] for name in ids)
    looked = where_to_look(near, space if is_listed else "")
    return f"{said}{looked}; give one that your own module registers as my_module:MyEnv-v0"


def _counts(num_envs: Any, num_threads: Any, max_episode_steps: Any) -> tuple[int, int, int | None]:
    if max_episode_steps not in {None, -1}:
        max_episode_steps = _at_least_one("max_episode_steps", max_episode_steps, most=2**63 - 1)
    return _at_least_one("num_envs", num_envs), _at_least_one("num_threads", num_threads), max_episode_steps


def _batch_size(value: Any, num_envs: int, *, divides: bool) -> int:
    batch_size = _at_least_one("batch_size", value)
    if batch_size > num_envs or (divides and num_envs % batch_size):
        expected = "at most num_envs that divides it" if divides else "at most num_envs"
        raise ValueError(f"batch_size is {batch_size}, expected {expected}, {num_envs}")
    return batch_size


def _autoreset_mode(value: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(value)
    except ValueError:
        expected = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ValueError(f"autoreset_mode is {value!r}, expected an AutoresetMode or one of {expected}") from None


def _at_least_one(name: str, value: Any, most: int = 2**31 - 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}") from None
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if number > most:
        raise ValueError(f"{name} must be at most {most:,}, got {value!r}")
    return number
