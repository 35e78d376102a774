"""Orders of arrivals: the order in which a parameter server applied a round's gradients, with `max_staleness`.

Learners then send gradients independently, and which arrives first is chance. The order is stored before the version
that follows from it is published, and only if its round has none yet. So a server that learns the round again applies
the same gradients in the same order, and publishes the same bytes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.digest import canonical_json, digest, parse_json
from penstock.storage.errors import CorruptObjectError, ObjectExistsError, ObjectNotFoundError
from penstock.storage.refs import order_name, parse_order_name, stage_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.stores.protocol import Store

FORMAT = "penstock-order/1"
_FOLDER = "orders/"


@dataclass(frozen=True, slots=True)
class ArrivalOrder:
    """The order of one round."""

    round: int
    arrivals: tuple[int, ...]
    """Numbers of the learners whose gradients were applied, first to last. Replies follow from them and the bound."""

    def encode(self) -> bytes:
        """Return the one sequence of bytes that encodes this order; it depends on no time, host or owner."""
        content = {"format": FORMAT, "round": self.round, "arrivals": list(self.arrivals)}
        return canonical_json({**content, "digest": digest(canonical_json(content))}) + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str) -> ArrivalOrder:
        """Return the order of encoded bytes.

        Raises:
            CorruptObjectError: the object is empty, cut short or altered.
        """
        try:
            found = parse_json(data)
            order = cls(int(found["round"]), tuple(int(learner) for learner in found["arrivals"]))
            # The bytes hold a digest, so that two arrivals that changed places are noticed, too.
            intact = order.encode() == data and bool(order.arrivals) and order.round == parse_order_name(name)
        except (ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise CorruptObjectError(
                f"'{name}' was altered or cut short: {len(data)} bytes, expected a '{FORMAT}' of the round in its "
                f"name. Restore it from a copy; no other record has the order in which the round was learned"
            )
        return order


def store_order(store: Store, stage: int, attempt: int, order: ArrivalOrder) -> ArrivalOrder:
    """Store an order, durable, unless its round has one.

    Returns:
        The order that counts: this one, or the one that was stored before.

    Raises:
        CorruptObjectError: the one that was stored before is damaged.
    """
    name = order_name(stage, attempt, order.round)
    try:
        store.create(name, order.encode())
    except ObjectExistsError:
        return ArrivalOrder.decode(store.read(name), name)
    return order


def stored_orders(store: Store, stage: int, attempt: int) -> dict[int, str]:
    """Return the names of the orders of an attempt at a stage, by round."""
    found = {}
    for name in store.list(stage_folder("orders", stage, attempt)):
        with suppress(CorruptObjectError):  # another program's file
            found[parse_order_name(name)] = name
    return found


def damaged_orders(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the name of each damaged order of a run, and the problem as one line."""
    for name in store.list(_FOLDER):
        try:
            parse_order_name(name)
        except CorruptObjectError:
            continue  # another program's file
        try:
            ArrivalOrder.decode(store.read(name), name)
        except CorruptObjectError as error:
            yield name, str(error)
        except ObjectNotFoundError:
            continue  # garbage collection removed it meanwhile
