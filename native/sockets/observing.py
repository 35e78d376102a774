"""Makes observations of rows: the environment's own, or one array of all, as `adapters/one_array.py` makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.spaces.utils import flatten_space
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.one_array import MASK, encoding, is_one_array, leaves_of, masked_encoding
from penstock.native.sockets import wire

if TYPE_CHECKING:
    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.adapters.one_array import Encoding
    from penstock.native.sockets.agreement import Agreement

    Path = tuple[str | int, ...]

_LARGEST_NUMBER_BYTES = 8


class Observing:
    """Makes the observations of a pool.

    Attributes:
        space: of one environment's observations.
        batch: the space of all.
    """

    def __init__(self, agreement: Agreement, num_envs: int, asked: Encoding) -> None:
        """Choose the spaces.

        Raises:
            ValueError: There can be no such array, or it is too large.
        """
        self._rows = agreement.observations
        own = agreement.observation_space
        self._parts: list[tuple[Path, Space[Any], bool]] = []
        self._mask: Path | None = None
        self._dtype: np.dtype[Any] | None = None
        self.space: Space[Any] = own
        if asked.one_array:
            self._check_size(own, num_envs)
            self.space, rest, before = self._encoded(own, agreement.action_space, asked)
            self._dtype = np.dtype(self.space.dtype)
            one_hot = not is_one_array(rest) or not asked.action_mask  # one array behind a mask stays as it is
            self._parts = [((*before, *path), part, one_hot) for path, part in leaves_of(rest)]
        self.batch = batch_space(self.space, num_envs)

    def check(self, rows: NDArray[Any]) -> None:
        """Refuse rows that are no observations; raises ValueError."""
        self._rows.check(rows)
        if self._mask is not None:
            mask = self._rows.columns(rows)[self._mask]
            if not ((mask == 0) | (mask == 1)).all():
                raise ValueError(f"'{MASK}' has other numbers than 0 and 1")

    def of_one(self, row: Any) -> Any:
        """Return the observation of one row."""
        return self._rows.values(row) if self._dtype is None else self(np.array([row]))[0]

    def __call__(self, rows: NDArray[Any]) -> Any:
        """Return the observations of rows that `check` has passed; they are copies."""
        if self._dtype is None:
            return self._rows.values(rows)
        columns = self._rows.columns(rows)
        parts = [_flat(part, columns[path], one_hot=one_hot) for path, part, one_hot in self._parts]
        if self._rows.choices:
            parts.insert(0, rows[MASK])
        elif self._mask is not None:
            parts.insert(0, columns[self._mask].reshape(len(rows), -1))
        return np.concatenate(parts, axis=1, dtype=self._dtype, casting="unsafe").reshape(
            len(rows), *(self.space.shape or ())
        )

    def _encoded(self, own: Space[Any], actions: Space[Any], asked: Encoding) -> tuple[Space[Any], Space[Any], Path]:
        """Return the space of the array, the space of what follows the mask, and the keys before that."""
        if asked.action_mask:
            masked, space = masked_encoding(own, actions, asked.action_mask, structured=asked.structured)
            if asked.action_mask == "observation":
                self._mask = (MASK,)
                leaves = {leaf.path: leaf.count for leaf in self._rows.leaves}
                if leaves.get(self._mask) != int(actions.n):  # type: ignore[attr-defined]
                    raise ValueError(f"'{MASK}' is no array of {int(actions.n)} numbers")  # type: ignore[attr-defined]
            return space, masked.rest.space, () if masked.key is None else (masked.key,)
        if asked.structured and not is_one_array(own):
            return encoding(own, structured=True)[1], own, ()
        # As version 1 of the protocol had it, so that runs from then go on: whole numbers but bytes are floats, and
        # choices one-hot, also those of a MultiDiscrete.
        flat = own if isinstance(own, Box) and own.shape else flatten_space(own)
        assert isinstance(flat, Box)
        if flat.dtype.kind != "f" and flat.dtype != np.uint8:
            flat = Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
        return flat, own, ()

    def _check_size(self, own: Space[Any], num_envs: int) -> None:
        leaves = self._rows.leaves
        numbers = self._rows.choices + sum(max(leaf.count, sum(leaf.sizes)) for leaf in leaves)
        if numbers * num_envs * _LARGEST_NUMBER_BYTES > wire.MAX_FRAME_BYTES:
            raise ValueError(
                f"{num_envs} observations of {numbers} numbers are too many for one array, since each choice of "
                f"{str(own)[:200]} takes a number; wrap the environment before it is served"
            )


def _flat(space: Space[Any], column: NDArray[Any], *, one_hot: bool) -> NDArray[Any]:
    """Return an array `[N, *shape]` of a leaf as `[N, numbers]`, as Gymnasium's `flatten` has each row."""
    if not one_hot or not isinstance(space, (Discrete, MultiDiscrete)):
        return column.reshape(len(column), -1)
    sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec).astype(np.int64)
    places = (column - space.start).reshape(len(column), -1) + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    found = np.zeros((len(column), int(sizes.sum())), dtype=space.dtype)
    np.put_along_axis(found, places, 1, axis=1)
    return found
