"""Checks the arguments of a pool's reset and configuration, as Gymnasium's SyncVectorEnv does."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np

from penstock.native.pool.control_suite import PREFIX as SUITE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, MutableMapping, Sequence

    from numpy.typing import NDArray


ValueT = TypeVar("ValueT")

_MAX_SEED = 2**64 - 1

_LARGEST_INTEGER = 2**53
"""The compiled pool takes a configuration as float64, which has all whole numbers up to here."""


def one_seed_each(seed: int | Sequence[int | None] | None, num_envs: int) -> Sequence[int | None]:
    """Return None for each environment, `seed + i` for environment i, or the sequence itself.

    Raises:
        TypeError: It is none of these.
        ValueError: The sequence has another length.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + index for index in range(num_envs)]
    if not hasattr(seed, "__len__"):
        raise TypeError(f"seed is {seed!r}, expected an int, one of them or None for each environment, or None")
    if len(seed) != num_envs:
        raise ValueError(f"got {len(seed)} seeds for {num_envs} environments; give one each, or one int for all")
    return seed


def checked_seed(seed: Any, index: int) -> int:
    """Return the seed of environment `index`.

    Raises:
        TypeError: It is not an int.
        ValueError: It is not in [0, 2**64).
    """
    try:
        value = operator.index(seed)
    except TypeError as error:
        raise TypeError(f"the seed of environment {index} is {seed!r}, expected an int from 0 to 2**64 - 1") from error
    if not 0 <= value <= _MAX_SEED:
        raise ValueError(f"the seed of environment {index} is {value}, expected 0 to 2**64 - 1")
    return value


def folded_seed(seed: int, bits: int) -> int:
    """Fold a seed of up to 64 bits into as many as a library takes; every bit counts, and those that fit stay the same.

    Two of n environments get the same with a probability of about n**2 / 2**(bits + 1).
    """
    folded, most = 0, (1 << bits) - 1
    while seed:
        folded ^= seed & most
        seed >>= bits
    return folded


def reset_mask(
    options: MutableMapping[str, Any] | None, num_envs: int, others: Collection[str] = ()
) -> NDArray[np.bool_]:
    """Return the mask of environments to reset: all, or `options["reset_mask"]`, which is removed from the options.

    It is removed from the caller's dictionary, as SyncVectorEnv does: using that dictionary twice resets all of them.
    The names of `others` may be there too.

    Raises:
        TypeError: The mask is not a NumPy array of bool.
        ValueError: The mask has another shape or is all False, or there is another option.
    """
    if not options:
        return np.ones(num_envs, dtype=np.bool_)
    unknown = sorted(set(options) - {"reset_mask", *others})
    if unknown:
        known = ", ".join(map(repr, ("reset_mask", *others)))
        raise ValueError(f"unknown reset options {unknown}; there is {known}, and make() takes the configuration")
    if "reset_mask" not in options:
        return np.ones(num_envs, dtype=np.bool_)
    return checked_mask(options.pop("reset_mask"), num_envs)


def masked_reset(
    seed: int | Sequence[int | None] | None, options: Mapping[str, Any] | None, num_envs: int, *, has_begun: bool
) -> tuple[NDArray[np.bool_], list[int | None]]:
    """Return the mask of environments to reset, and a seed or None for each, of arguments that a pool has checked.

    Raises:
        ValueError: The first reset, before which nothing `has_begun`, is not one of all.
    """
    mask = (options or {}).get("reset_mask")
    chosen = np.ones(num_envs, dtype=np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_)
    if not has_begun and not chosen.all():
        raise ValueError("reset_mask: expected a reset of all environments first")
    if seed is None or isinstance(seed, int):
        return chosen, [None if seed is None else seed + env for env in range(num_envs)]
    return chosen, list(seed)


def checked_mask(mask: object, num_envs: int) -> NDArray[np.bool_]:
    """Return a copy of a mask of environments to reset.

    Raises:
        TypeError: It is not a NumPy array of bool.
        ValueError: It has another shape, or is all False.
    """
    expected = f"reset_mask must be bool [{num_envs}], a NumPy array with at least one True"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{expected}, got {type(mask).__name__}")
    if mask.shape != (num_envs,):
        raise ValueError(f"{expected}, got {mask.dtype} {list(mask.shape)}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{expected}, got {mask.dtype}")
    if not mask.any():
        raise ValueError(f"{expected}, got {mask}")
    return np.array(mask)  # ours: with DISABLED it often is an array that the caller continues to use


_DTYPES: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}
_ACCEPTED_KINDS: dict[type, str] = {bool: "b", int: "iu", float: "fiu"}


def configuration(
    environment_id: str, given: Mapping[str, Any], defaults: Mapping[str, float | int | bool], num_envs: int
) -> dict[str, NDArray[Any]]:
    """Return every field of the configuration, one value an environment.

    A pair `x_range`, as Gymnasium's classes take it, stands for the fields `x_min` and `x_max`.

    Raises:
        ValueError: An unknown field (the message lists those that exist), or an invalid value.
    """
    given, own = without_ranges(given, defaults), settable(environment_id, defaults)
    # A pool's own description has all fields.
    unknown = sorted(
        name
        for name, value in given.items()
        if name not in own and not (name in defaults and np.array_equal(value, defaults[name]))
    )
    others = f"; Gymnasium's own, 'gymnasium/{environment_id}', takes the keyword arguments of its class"
    # Ids of families are Penstock's own, which Gymnasium steps as well.
    ending = others if environment_id in gymnasium.registry and "/" not in environment_id else ""
    refuse_unknown(environment_id, unknown, own, kind="configuration field", listed_as="fields", ending=ending)
    return {name: one_each(name, given.get(name, default), default, num_envs) for name, default in defaults.items()}


def similar_ids(wanted: str, ids: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return up to three ids that look like the wanted one or contain it, the most similar first, in any capitals."""
    by_lower = {name.lower(): name for name in ids}
    lower = wanted.lower()
    near = get_close_matches(lower, by_lower, n=3, cutoff=cutoff)
    containing = sorted((name for name in by_lower if lower in name), key=len)
    return [by_lower[name] for name in dict.fromkeys((*near, *containing))][:3]


def where_to_look(near: Iterable[str], beginning: str = "") -> str:
    """End a refusal of an id with those that look like it, and the command that lists all that begin so."""
    similar = ", ".join(near)
    return f"{f'; similar: {similar}' if similar else ''}; `penstock envs{beginning and f' {beginning}'}` lists all"


def refuse_unknown(
    environment_id: str,
    unknown: Collection[str],
    offered: Mapping[str, object] | Sequence[str],
    *,
    kind: str = "setting",
    listed_as: str = "settings",
    ending: str = "",
) -> None:
    """Refuse settings that an environment does not have.

    Args:
        environment_id: Its id.
        unknown: Names that it does not have; none are fine.
        offered: Those that it has, with their defaults or without.
        kind: What one is called.
        listed_as: What all are called.
        ending: The end of the message.

    Raises:
        ValueError: There are some; the message lists what is offered, and what is near.
    """
    if not unknown:
        return
    listed = [f"{name}={value!r}" for name, value in offered.items()] if isinstance(offered, Mapping) else offered
    near = [match for name in unknown for match in get_close_matches(name, list(offered), n=1)]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(
        f"{environment_id} has no {kind} {', '.join(map(repr, unknown))}; its {listed_as}: "
        f"{', '.join(listed) or 'none'}{hint}{ending}"
    )


def settable(environment_id: str, defaults: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Return the fields that a user may set: of the control suite's tasks, the number of the task is the id's."""
    is_of_the_suite = environment_id.startswith(SUITE)
    return {name: value for name, value in defaults.items() if not (is_of_the_suite and name == "task")}


def without_ranges(given: Mapping[str, Any], defaults: Mapping[str, float | int | bool]) -> dict[str, Any]:
    """Return the fields with each pair `x_range` as `x_min` and `x_max`, where there are both."""
    fields = dict(given)
    for name, value in given.items():
        bounds = [name.removesuffix("_range") + end for end in ("_min", "_max")]
        if not name.endswith("_range") or name in defaults or not set(bounds) <= set(defaults):
            continue
        twice = sorted(set(bounds) & set(given))
        if twice:
            raise ValueError(f"{name} and {' and '.join(twice)} say the same; give one of them")
        if not isinstance(value, (list, tuple, np.ndarray)) or len(value) != len(bounds):
            raise ValueError(f"{name} must be a pair of numbers, the lower bound first, got {value!r}")
        del fields[name]
        fields.update(zip(bounds, value, strict=True))
    return fields


def one_each(name: str, value: Any, default: float, num_envs: int) -> NDArray[Any]:
    """Return one value of a field for each environment, of the type of its default.

    Raises:
        ValueError: Another type, another number of values, one that is not finite, or an integer beyond 2**53.
    """
    kind = type(default)
    array = np.asarray(value)
    if array.dtype.kind not in _ACCEPTED_KINDS[kind]:
        several = f", or {num_envs} of them" if num_envs > 1 else ""
        raise ValueError(f"{name} must be {kind.__name__}{several}, got {value!r}")
    if array.shape not in ((), (num_envs,)):
        raise ValueError(
            f"{name} must be one value or one for each of {num_envs} environments, got {list(array.shape)}"
        )
    # A limit whose default is infinite may be infinite: there is none then.
    takes = math.isfinite if math.isfinite(default) else lambda item: not math.isnan(item)
    wrong = next((item for item in array.reshape(-1).tolist() if not takes(item)), None)
    if wrong is not None:
        raise ValueError(f"{name} must be finite, got {wrong}")
    if kind is int and np.any((array > _LARGEST_INTEGER) | (array < -_LARGEST_INTEGER)):
        raise ValueError(f"{name} must be from -{_LARGEST_INTEGER} to {_LARGEST_INTEGER}, got {value!r}")
    return np.broadcast_to(array, (num_envs,)).astype(_DTYPES[kind])


def core_values(config: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the same as the compiled pool takes it."""
    return {name: np.ascontiguousarray(values, dtype=np.float64) for name, values in config.items()}
