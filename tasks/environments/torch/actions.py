"""Checks the actions that a torch pool gets from the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.native.interface import ActionFormat


class HostActions:
    """Reads the actions of `num_envs` environments."""

    def __init__(self, action: ActionFormat, num_envs: int) -> None:
        self._dtype = np.dtype(action["dtype"])
        self._shape = (num_envs, *action["shape"])
        self._choices = action.get("n", 0)

    def for_step(self, actions: Any) -> NDArray[Any]:
        """Return the actions of `step` as the environments take them; integers and floats are converted.

        Raises:
            ValueError: They have another shape or kind, or one is out of range or not finite.
        """
        array = np.asarray(actions)
        kinds, name = ("iu", "integers") if self._choices else ("fiu", "floats")
        if array.dtype.kind not in kinds or array.shape != self._shape:
            raise ValueError(f"expected {name} of shape {self._shape} as actions, got {array.dtype} of {array.shape}")
        return self._checked(np.ascontiguousarray(array, dtype=self._dtype))

    def for_round(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the actions of `step_round`, which are not converted; errors as of `for_step`."""
        if action.dtype != self._dtype or action.shape != self._shape or not action.flags.c_contiguous:
            raise ValueError(
                f"actions: expected a C-contiguous {self._dtype} array of shape {self._shape}, got {action.dtype} "
                f"{action.shape}"
            )
        return self._checked(action)

    def _checked(self, array: NDArray[Any]) -> NDArray[Any]:
        wrong = (array < 0) | (array >= self._choices) if self._choices else ~np.isfinite(array)
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            what = f"is out of range: expected 0 to {self._choices - 1}" if self._choices else "is not finite"
            raise ValueError(f"action {array[place]} of environment {place[0]} {what}")
        return array
