"""JSON that anyone may have written is read with one kind of error."""

import pytest

from penstock.storage.digest import parse_json


def test_json_is_read_as_it_is():
    """Numbers keep their types."""
    assert parse_json(b'{"a":[1,2.5,-0.0,null,true,"x"]}') == {"a": [1, 2.5, -0.0, None, True, "x"]}
    assert type(parse_json("1")) is int


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"NaN",
        b"[Infinity]",
        b"-1e999",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 10_000,
    ],
    ids=lambda data: data[:9],
)
def test_every_fault_is_a_value_error(data: bytes):
    """Also those that Python's parser accepts, or ends with another error."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(data)
