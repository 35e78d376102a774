"""A round's choice of shards is stored once, and is what it was when it is read."""

from __future__ import annotations

import json

import pytest

from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import choice_name
from penstock.storage.runs.round_choices import Choice, store_choice, stored_choices
from penstock.storage.stores.open import open_store

FIRST = Choice(7, {0: "a" * 32, 2: "b" * 32})


def test_the_first_choice_counts(tmp_path):
    """A second writer gets the first one's choice, and nothing is overwritten; each attempt has its own."""
    store = open_store(tmp_path)
    assert store_choice(store, 1, 0, FIRST) == FIRST
    assert store_choice(store, 1, 0, Choice(7, {1: "c" * 32})) == FIRST
    assert store_choice(store, 1, 1, Choice(7, {1: "c" * 32})).digests == {1: "c" * 32}
    assert stored_choices(store, 1, 0) == {7: choice_name(1, 0, 7)}
    assert json.loads(store.read(choice_name(1, 0, 7))) == {
        "format": "penstock-choice/1",
        "round": 7,
        "shards": [{"tile": 0, "digest": "a" * 32}, {"tile": 2, "digest": "b" * 32}],
    }


@pytest.mark.parametrize("data", [b"", b"[]\n", FIRST.encode()[:-9], FIRST.encode().replace(b"7", b"8"), b'{"a":1}'])
def test_a_choice_that_was_altered_is_named(data):
    """A choice that is truncated, of another round, or no choice at all is never learned from."""
    with pytest.raises(CorruptObjectError, match=choice_name(1, 0, 7)):
        Choice.decode(data, choice_name(1, 0, 7))
