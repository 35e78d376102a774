"""Records of a sweep, next to the runs of its store: its settings and its decisions, each written before it counts.

A decision follows from committed stages and earlier decisions alone. A sweep that was killed anywhere finds those that
it took, and takes the others as it would have.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import (
    ConfigError,
    CorruptObjectError,
    LeaseHeldError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.run import SWEEPS
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.storage.runs.lease import LeaseKeeper

FORMAT = "penstock-sweep/1"
_DESCRIPTION = "sweep.json"
_LEASE_TTL_SECONDS = 30.0


class SweepRecords:
    """Records of one sweep.

    Args:
        store: address of the store.
        name: name of the sweep.
    """

    def __init__(self, store: str, name: str) -> None:
        self.name = name
        self.store = open_store(store).at(f"{SWEEPS}{name}")
        self._keeper: LeaseKeeper | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the sweep for this flow: of two, each would train the same runs and take the other's for failed.

        Raises:
            LeaseHeldError: another flow has it.
        """
        with contextlib.ExitStack() as stack:
            try:
                self._keeper = stack.enter_context(acquire(self.store, f"sweep {self.name}", _LEASE_TTL_SECONDS))
            except LeaseHeldError as error:
                raise LeaseHeldError(f"sweep '{self.name}' in {self.store.url} is under way: {error}") from error
            yield

    def begin(self, method: str, settings: Mapping[str, Any]) -> None:
        """Record the sweep's settings, or check that it was begun with the same ones.

        Raises:
            ConfigError: a sweep of this name was begun with others.
        """
        given = parse_json(canonical_json({"format": FORMAT, "method": method, **settings}))
        found = self.keep(_DESCRIPTION, given)
        if found != given:
            names = sorted(name for name in {*found, *given} if found.get(name) != given.get(name))
            differing = "; ".join(
                f"{name} was {json.dumps(found.get(name))}, is {json.dumps(given.get(name))}" for name in names
            )
            raise ConfigError(
                f"sweep '{self.name}' in {self.store.url} was begun with other settings: {differing}. Give those to "
                f"continue it, or choose another name"
            )

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a record; None if there is none.

        Raises:
            CorruptObjectError: it was altered or cut short.
        """
        try:
            data = self.store.read(name)
        except ObjectNotFoundError:
            return None
        try:
            found = parse_json(data)
            if isinstance(found, dict) and canonical_json(found) + b"\n" == data:
                return found
        except ValueError:
            pass
        raise CorruptObjectError(
            f"'{name}' in {self.store.url} was altered or cut short: {len(data)} bytes that are not a canonical JSON "
            f"object. Remove it: the sweep then decides this again, from the same commits"
        )

    def keep(self, name: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Record a decision, durably and once; return the one that counts, which is the first.

        Raises:
            CorruptObjectError: the first one was altered.
            LeaseLostError: this flow stood still, and another one may have the sweep.
        """
        if self._keeper is not None:
            self._keeper.check()
        with contextlib.suppress(ObjectExistsError):
            self.store.create(name, canonical_json(record) + b"\n")
        found = self.read(name)
        assert found is not None
        return found

    def show(self, rows: Sequence[Mapping[str, Any]], picture: str) -> None:
        """Keep what the sweep shows: `table.json` and `parallel_coordinates.svg`."""
        self.store.write("table.json", [canonical_json(list(rows)) + b"\n"])
        self.store.write("parallel_coordinates.svg", [picture.encode()])
