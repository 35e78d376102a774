"""Choices: which of its shards a round is learned from, where not all of them are waited for.

One is stored before its round is learned from, and only if there is none yet. So who learns the round again, or beside
somebody who should have left, learns from the same shards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.digest import canonical_json
from storage.errors import CorruptObjectError, ObjectExistsError
from storage.refs import choice_name, parse_choice_name, stage_folder

if TYPE_CHECKING:
    from storage.store import Store

FORMAT = "penstock-choice/1"


@dataclass(frozen=True, slots=True)
class Choice:
    """The shards of one round that are learned from."""

    round: int
    digests: dict[int, str]
    """Of the chosen shards, by tile, in order of tile."""

    def encode(self) -> bytes:
        """The one sequence of bytes that says this choice: nothing in it depends on time, host or owner."""
        shards = [{"tile": tile, "digest": digest} for tile, digest in sorted(self.digests.items())]
        return canonical_json({"format": FORMAT, "round": self.round, "shards": shards}) + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str) -> Choice:
        """Back from `encode`.

        Raises:
            CorruptObjectError: the object is empty, cut short or altered.
        """
        try:
            said = json.loads(data)
            choice = cls(int(said["round"]), {int(one["tile"]): str(one["digest"]) for one in said["shards"]})
            intact = choice.encode() == data and bool(choice.digests) and choice.round == parse_choice_name(name)
        except (ValueError, KeyError, TypeError, RecursionError):
            intact = False
        if not intact:
            raise CorruptObjectError(
                f"'{name}' is not what was written there: {len(data)} bytes, expected a '{FORMAT}' of the round in its "
                f"name. Without it nobody knows which shards the round was learned from"
            )
        return choice


def store_choice(store: Store, stage: int, attempt: int, choice: Choice) -> Choice:
    """Store a choice, durable, unless its round has one.

    Returns:
        The choice that counts: this one, or the one that was there before.

    Raises:
        CorruptObjectError: the one that was there is damaged.
    """
    name = choice_name(stage, attempt, choice.round)
    try:
        store.create(name, choice.encode())
    except ObjectExistsError:
        return Choice.decode(store.read(name), name)
    return choice


def stored_choices(store: Store, stage: int, attempt: int) -> dict[int, str]:
    """Names of the choices of an attempt at a stage, by round."""
    return {parse_choice_name(name): name for name in store.list(stage_folder("choices", stage, attempt))}
