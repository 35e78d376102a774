"""Reads and writes the columns of a batch: the members of an environment's configuration and state, by name.

The C++ side is `include/penstock/batch/memory.hpp`: columns of 8 bytes in one array, bools in another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

GENERATOR_WORDS = 5
COUNTERS = ("episode_return", "elapsed_steps", "episode_id")
"""Columns of the framework behind the state's words, in this order; the generator's words follow."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the configuration or the state."""

    name: str
    """Its name in a pool's saved state, as `config.gravity`."""
    dtype: np.dtype[Any]
    """float64, int64 or bool."""
    length: int
    """The number of elements of an array; 0 for a single number."""
    first: int
    """Its first column, among the words or, for bools, among the flags."""

    @property
    def columns(self) -> slice:
        """Return its columns."""
        return slice(self.first, self.first + max(1, self.length))

    @property
    def is_flag(self) -> bool:
        """Return whether its columns are among the flags."""
        return self.dtype == np.bool_


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one environment's batches."""

    config: tuple[Member, ...]
    state: tuple[Member, ...]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read the lines of `BatchKernels::layout` (`include/penstock/batch/kernels.hpp`)."""
        lines = [line.split() for line in text.splitlines()]
        return cls(*(_members(line for line in lines if line[0].startswith(part)) for part in ("config.", "state.")))

    @property
    def counter_words(self) -> dict[str, int]:
        """Return the column of each of `COUNTERS` among the state's words."""
        first = _count(self.state, flags=False)
        return {name: first + index for index, name in enumerate(COUNTERS)}

    @property
    def generator(self) -> slice:
        """Return the columns of the generator among the state's words."""
        first = _count(self.state, flags=False) + len(COUNTERS)
        return slice(first, first + GENERATOR_WORDS)

    def config_arrays(self, values: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return words int64 `[columns, environments]` and flags bool of a configuration, given each field's values."""
        (num_envs,) = {len(value) for value in values.values()} or {0}
        words, flags = empty_columns(self.config, num_envs)
        write_members(self.config, {f"config.{name}": value for name, value in values.items()}, words, flags)
        return words, flags

    def state_columns(self) -> tuple[int, int]:
        """Return the number of a batch's columns of words and of flags, those of the framework included."""
        return self.generator.stop, _count(self.state, flags=True)


def empty_columns(members: Iterable[Member], num_envs: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return zeroed columns for these members."""
    members = tuple(members)
    words = np.zeros((_count(members, flags=False), num_envs), dtype=np.int64)
    return words, np.zeros((_count(members, flags=True), num_envs), dtype=np.bool_)


def write_members(
    members: Iterable[Member],
    values: Mapping[str, NDArray[Any]],
    words: NDArray[np.int64],
    flags: NDArray[np.bool_],
) -> None:
    """Write members' values, `[environments]` or `[environments, length]` by name, into columns."""
    for member in members:
        array = np.ascontiguousarray(values[member.name], dtype=member.dtype)
        if member.is_flag:
            flags[member.columns] = array.reshape(len(array), -1).T
        else:
            words[member.columns] = array.view(np.int64).reshape(len(array), -1).T


def read_member(member: Member, words: NDArray[np.int64], flags: NDArray[np.bool_]) -> NDArray[Any]:
    """Return a member's values, `[environments]` or `[environments, length]`, C-contiguous."""
    rows = np.ascontiguousarray((flags if member.is_flag else words)[member.columns].T).view(member.dtype)
    return rows if member.length else rows.reshape(-1)


def _members(lines: Iterable[list[str]]) -> tuple[Member, ...]:
    found: list[Member] = []
    used = {True: 0, False: 0}
    for name, dtype, length in lines:
        member = Member(name, np.dtype(dtype), int(length), used[dtype == "bool"])
        used[member.is_flag] = member.columns.stop
        found.append(member)
    return tuple(found)


def _count(members: Iterable[Member], *, flags: bool) -> int:
    return sum(max(1, member.length) for member in members if member.is_flag == flags)
