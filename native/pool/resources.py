"""Settings of a whole pool that are text: what all of its environments share is made from them, a model or a map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.native.pool import mujoco_library

if TYPE_CHECKING:
    from collections.abc import Mapping

Resources: TypeAlias = "dict[str, str | list[str]]"
"""Those settings of one pool, by name, as plain data."""

_LAKES = ("toy/FrozenLake-v1", "toy/FrozenLake8x8-v1")
_MAPS = ("4x4", "8x8")


def resource_types(environment_id: str) -> dict[str, type]:
    """Return the names of those settings that an environment has, each with the type of its value."""
    if environment_id in mujoco_library.IDS:
        return {"xml_file": str}
    return {"map_name": str, "desc": list} if environment_id in _LAKES else {}


def without_resources(environment_id: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Resources]:
    """Return the fields among the settings of an environment, and those that are a whole pool's, checked.

    Raises:
        ValueError: Another type than expected, a map that there is not, or two settings that say the same.
    """
    names = resource_types(environment_id)
    fields = {name: value for name, value in given.items() if name not in names}
    chosen = {name: _checked(name, given[name]) for name in names if name in given}
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} say the same; give one of them")
    return fields, chosen


def shared_from(environment_id: str, resources: Resources) -> str | None:
    """Return what the compiled pool makes its shared part from; None: the environment's own.

    Raises:
        ValueError: There is no such file.
    """
    for value in resources.values():
        if environment_id in mujoco_library.IDS:
            return str(mujoco_library.model_path(str(value)))
        return value if isinstance(value, str) else "\n".join(value)
    return None


def _checked(name: str, value: Any) -> str | list[str]:
    if name == "desc":
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(row, str) and row for row in value):
            raise ValueError(f"desc must be a list of rows, such as ['SFF', 'FHG'], got {value!r}")
        return list(value)
    if name == "map_name" and value not in _MAPS:
        raise ValueError(f"map_name is {value!r}, expected {' or '.join(map(repr, _MAPS))}; desc takes any map")
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, one for the whole pool, got {value!r}")  # noqa: TRY004
    return value
