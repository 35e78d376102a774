"""Splits the infos of a vector environment by row, for trainers that want one dictionary per environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.native.interface import Infos


def split_infos(infos: Mapping[str, Any], num_envs: int) -> list[Infos]:
    """Return one dictionary for each environment, each with the names whose mask `_name` holds for it.

    Every dictionary is a new one, because trainers and their wrappers write into them. With no infos this is all that
    it costs.

    Args:
        infos: As `gymnasium.vector.VectorEnv` gives them: `name` with an array, list or dictionary, `_name` with a
            mask bool [num_envs]. In nested dictionaries a name without a mask holds for all.
        num_envs: How many dictionaries.
    """
    rows: list[Infos] = [{} for _ in range(num_envs)]
    for name, value in infos.items():
        if name.startswith("_") and name[1:] in infos:
            continue
        mask = infos.get(f"_{name}")
        chosen = np.arange(num_envs) if mask is None else np.flatnonzero(mask)
        for row, item in zip(chosen.tolist(), _items(value, chosen, num_envs), strict=True):
            rows[row][name] = item
    return rows


def _items(value: Any, chosen: NDArray[np.intp], num_envs: int) -> list[Any]:
    if isinstance(value, dict):
        nested = split_infos(value, num_envs)
        return [nested[row] for row in chosen.tolist()]
    picked = np.asarray(value)[chosen]
    return picked.tolist() if picked.ndim == 1 else list(picked)


def pop_ended(row: Infos) -> tuple[NDArray[Any], Infos, Infos | None]:
    """Remove the ended episode's entries, as SAME_STEP adds them, from a row; the reset's info stays there.

    Returns:
        Its last observation, the info of its last step, and its statistics (`r`, `l`) if they are recorded.
    """
    return row.pop("final_obs"), row.pop("final_info", {}), row.pop("episode", None)
