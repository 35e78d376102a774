"""The codec of records: frozen dataclasses to plain JSON values and back, each field checked when it is read.

A record is a dataclass whose annotations define its JSON: `int` (a count, 0 or more), `float` (any number), `str`,
`bool`, `object` (any JSON), another record, `tuple[X, ...]`, `tuple[X, Y]`, `Mapping[str, X]`, and `X | None`. A field
with a default may be missing; one whose default is None is not written while it is None.

Numbers are kept as they were read, and nothing is converted, so a record that was read is written as the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable

_Record = TypeVar("_Record")
_COUNTS = 2**63
"""Whole numbers stay below it: Arrow and NumPy take no others."""
_PLAIN = (str, int, float, NoneType)


class RecordError(ValueError):
    """A value is not what a record's field expects; the message is one line that names the field."""

    def __init__(self, found: object, expected: str) -> None:
        super().__init__(f"it is {found!r}, expected {expected}")
        self.found, self.expected = found, expected
        self.path = ""

    def within(self, place: str) -> RecordError:
        """Return the error as seen from the container of the value, under the field or index `place`."""
        self.path = f"{place}{self.path}" if self.path.startswith("[") or not self.path else f"{place}.{self.path}"
        self.args = (f"'{self.path}' is {self.found!r}, expected {self.expected}",)
        return self


class _FieldsError(RecordError):
    """A record lacks fields, or has unknown ones."""

    def __init__(self, names: set[str], problem: str) -> None:
        super().__init__(None, "")
        self._text = f"{', '.join(map(repr, sorted(names)))} {problem}"
        self.args = (self._text,)

    def within(self, place: str) -> RecordError:
        super().within(place)
        self.args = (f"{self._text} in '{self.path}'",)
        return self


def to_json(record: Any) -> dict[str, object]:
    """Return a record as a JSON object."""
    kind: Any = type(record)
    return _writer(kind)(record)


def from_json(cls: type[_Record], value: object, *, ignore_unknown: bool = False) -> _Record:
    """Return the record that a JSON object encodes.

    Args:
        cls: the class of the record.
        value: a value from `json.loads`.
        ignore_unknown: accept objects with fields that the record does not have, here and inside.

    Raises:
        RecordError: a field is missing, unknown or of another type.
    """
    key: Any = cls
    record: _Record = _record_parser(key, ignore_unknown)(value)
    return record


def _plain(value: Any) -> object:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return to_json(value)


@cache
def _writer(cls: type) -> Callable[[object], dict[str, object]]:
    names = tuple(field.name for field in fields(cls))
    optional = frozenset(field.name for field in fields(cls) if field.default is None)
    hints = get_type_hints(cls)
    # A commit has hundreds of references, which are flat: all their fields are read at once.
    get = attrgetter(*names) if len(names) > 1 else lambda record: (getattr(record, names[0]),)
    if all(hints[name] in {int, str} for name in names):
        return lambda record: dict(zip(names, get(record), strict=True))

    def write(record: object) -> dict[str, object]:
        values = zip(names, get(record), strict=True)
        return {name: _plain(value) for name, value in values if value is not None or name not in optional}

    return write


@cache
def _record_parser(cls: type, ignore_unknown: bool) -> Callable[[object], Any]:
    hints = get_type_hints(cls)
    parsers = {field.name: _parser(hints[field.name], ignore_unknown) for field in fields(cls)}
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}

    def parse(value: object) -> Any:
        if not isinstance(value, dict):
            raise RecordError(value, "an object")
        found = {}
        try:
            for name, read in parsers.items():
                if name in value:
                    found[name] = read(value[name])
        except RecordError as error:
            raise error.within(name) from None
        if missing := required - found.keys():
            raise _FieldsError(missing, "missing")
        if len(found) < len(value) and not ignore_unknown:
            raise _FieldsError(value.keys() - parsers.keys(), "unknown")
        return cls(**found)

    return _flat_parser(cls, hints, parse) if all(hints[name] in {int, str} for name in parsers) else parse


def _flat_parser(cls: type, hints: Mapping[str, type], parse: Callable[[object], Any]) -> Callable[[object], Any]:
    """Return a fast parser for records of numbers and text; it leaves unexpected values to `parse`."""
    names = tuple(field.name for field in fields(cls))
    counts = [name for name in names if hints[name] is int]
    if len(names) < 2 or not counts or any(field.kw_only for field in fields(cls)):
        return parse
    get, get_counts, kinds = itemgetter(*names), itemgetter(*counts, counts[0]), tuple(hints[name] for name in names)

    def parse_flat(value: object) -> Any:
        if type(value) is dict and len(value) == len(names):
            try:
                values = get(value)
            except KeyError:
                return parse(value)
            if tuple(map(type, values)) == kinds and min(get_counts(value)) >= 0 and max(get_counts(value)) < _COUNTS:
                return cls(*values)
        return parse(value)

    return parse_flat


def _parser(hint: Any, ignore_unknown: bool) -> Callable[[object], Any]:
    """Return the parser of an annotated type."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    if is_dataclass(hint):
        return _record_parser(hint, ignore_unknown)  # type: ignore[arg-type]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is UnionType and NoneType in parts and len(parts) == 2:
        return _optional(_parser(next(part for part in parts if part is not NoneType), ignore_unknown))
    if origin is tuple and parts[1:] == (...,):
        return _sequence(_parser(parts[0], ignore_unknown))
    if origin is tuple:
        return _fixed([_parser(part, ignore_unknown) for part in parts])
    if origin is Mapping and parts[0] is str:
        return _mapping(_parser(parts[1], ignore_unknown))
    raise TypeError(f"a record's field can't be annotated with {hint}")


def _count(value: object) -> object:
    if type(value) is int and 0 <= value < _COUNTS:
        return value
    raise RecordError(value, "a whole number from 0 to 2**63 - 1")


def _number(value: object) -> object:
    if type(value) is float or (type(value) is int and abs(value) < _COUNTS):
        return value
    raise RecordError(value, "a number, a whole one below 2**63")


def _text(value: object) -> object:
    if type(value) is str:
        return value
    raise RecordError(value, "text")


def _flag(value: object) -> object:
    if type(value) is bool:
        return value
    raise RecordError(value, "true or false")


_SCALARS: dict[Any, Callable[[object], object]] = {
    int: _count,
    float: _number,
    str: _text,
    bool: _flag,
    object: lambda value: value,
}


def _optional(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else parse(value)


def _sequence(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    def parse_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise RecordError(value, "a list")
        found: list[Any] = []
        try:
            for one in value:
                found.append(parse(one))  # noqa: PERF401  (the error names the place)
        except RecordError as error:
            raise error.within(f"[{len(found)}]") from None
        return tuple(found)

    return parse_all


def _fixed(parsers: list[Callable[[object], Any]]) -> Callable[[object], Any]:
    def parse_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(parsers):
            raise RecordError(value, f"a list of {len(parsers)}")
        return tuple(parse(one) for parse, one in zip(parsers, value, strict=True))

    return parse_all


def _mapping(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    def parse_all(value: object) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise RecordError(value, "an object")
        found = {}
        try:
            for name, one in value.items():
                found[name] = parse(one)
        except RecordError as error:
            raise error.within(name) from None
        return found

    return parse_all
