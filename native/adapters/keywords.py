"""Checks the keyword arguments of Gymnasium's environments against their signatures, before anything is made.

A signature says less than an environment accepts: `**kwargs` may take more, and a default of 0 may stand for a float.
Only what is certainly wrong is refused here; the rest is the environment's to refuse.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from gymnasium.envs.registration import load_env_creator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.envs.registration import EnvSpec

_NAMES = {bool: "bool", int: "int", float: "float", str: "str"}


def keywords_of(spec: EnvSpec) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments that the environment's constructor names; none if it can't be inspected."""
    try:
        creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
        found = inspect.signature(creator, eval_str=True).parameters
    except Exception:  # noqa: BLE001  (another's module may raise anything; `gymnasium.make` then says what is missing)
        return {}
    return {name: one for name, one in found.items() if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}}


def type_of(keyword: inspect.Parameter) -> type | None:
    """Return bool, int, float or str if an argument must be one; otherwise None.

    An annotation decides. Without one, a default that is bool, float or str does; one of 0 may stand for a float.
    """
    annotation = keyword.annotation
    if get_origin(annotation) in {Union, UnionType}:
        members = [member for member in get_args(annotation) if member is not NoneType]
        annotation = members[0] if len(members) == 1 else None
    if annotation in _NAMES:
        kind: type = annotation
        return kind
    if annotation is inspect.Parameter.empty and type(keyword.default) in {bool, float, str}:
        return type(keyword.default)
    return None


def check_keywords(env_id: str, keywords: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Refuse values that are of another type than the signature names.

    Raises:
        ValueError: names the argument, its type and the value.
    """
    for name, value in given.items():
        kind = type_of(keywords[name]) if name in keywords else None
        if kind is None or value is None:
            continue
        is_bool = isinstance(value, bool)
        right = isinstance(value, (int, float)) and not is_bool if kind is float else isinstance(value, kind)
        if not right or (kind is int and is_bool):
            raise ValueError(f"{name} of {env_id} must be {_NAMES[kind]}, got {value!r}")


def suggestion(keywords: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> str:
    """Return the end of a message about a refused construction: names that are near unknown ones, or all names."""
    unknown = [name for name in given if name not in keywords]
    offered = [
        name if one.default is one.empty else f"{name}={one.default!r}"
        for name, one in keywords.items()
        if name not in {"self", "render_mode"}
    ]
    if not unknown or not offered:
        return ""
    near = [match for name in unknown for match in get_close_matches(name, keywords, n=1)]
    return f"; did you mean {' or '.join(near)}?" if near else f"; it takes {', '.join(offered)}"
