"""Round choices: the shards that a round is learned from, with a quorum below 1.

A choice is stored before its round is learned from, and only if there is none yet. So a learner that learns the round
again, or concurrently with one that should have left, learns from the same shards.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import CorruptObjectError, ObjectExistsError
from penstock.storage.refs import choice_name, parse_choice_name, stage_folder

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store

FORMAT = "penstock-choice/1"


@dataclass(frozen=True, slots=True)
class Choice:
    """The shards of one round that are learned from."""

    round: int
    digests: dict[int, str]
    """Digests of the chosen shards by tile, in order of tile."""

    def encode(self) -> bytes:
        """Return the one sequence of bytes that encodes this choice; it depends on no time, host or owner."""
        shards = [{"tile": tile, "digest": digest} for tile, digest in sorted(self.digests.items())]
        return canonical_json({"format": FORMAT, "round": self.round, "shards": shards}) + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str) -> Choice:
        """Return the choice of encoded bytes.

        Raises:
            CorruptObjectError: the object is empty, cut short or altered.
        """
        try:
            found = parse_json(data)
            choice = cls(int(found["round"]), {int(one["tile"]): str(one["digest"]) for one in found["shards"]})
            intact = choice.encode() == data and bool(choice.digests) and choice.round == parse_choice_name(name)
        except (ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise CorruptObjectError(
                f"'{name}' was altered or cut short: {len(data)} bytes, expected a '{FORMAT}' of the round in its "
                f"name. Restore it from a copy; no other record has the shards that the round was learned from"
            )
        return choice


def store_choice(store: Store, stage: int, attempt: int, choice: Choice) -> Choice:
    """Store a choice, durable, unless its round has one.

    Returns:
        The choice that counts: this one, or the one that was stored before.

    Raises:
        CorruptObjectError: the one that was stored before is damaged.
    """
    name = choice_name(stage, attempt, choice.round)
    try:
        store.create(name, choice.encode())
    except ObjectExistsError:
        return Choice.decode(store.read(name), name)
    return choice


def stored_choices(store: Store, stage: int, attempt: int) -> dict[int, str]:
    """Return the names of the choices of an attempt at a stage, by round."""
    found = {}
    for name in store.list(stage_folder("choices", stage, attempt)):
        with suppress(CorruptObjectError):  # another program's file
            found[parse_choice_name(name)] = name
    return found
