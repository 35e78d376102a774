"""The codec of records: the same bytes come back, and a value that is not expected is named in one line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from penstock.storage.digest import canonical_json
from penstock.storage.records import RecordError, from_json, to_json
from penstock.storage.refs import Ref


@dataclass(frozen=True)
class Leaf:
    name: str
    count: int = 0


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    span: tuple[int, int]
    weights: Mapping[str, float]
    by_name: Mapping[str, Leaf]
    anything: object
    done: bool
    ref: Ref
    note: str | None
    late: int | None = None


JSON = {
    "leaves": [{"name": "a", "count": 3}, {"name": "b", "count": 0}],
    "span": [2, 5],
    "weights": {"whole": 1, "part": 0.1, "small": 1e-05, "none": 0.0},
    "by_name": {"x": {"name": "c", "count": 1}},
    "anything": [{"deep": None}, "é"],
    "done": False,
    "ref": {"name": "checkpoints/1", "digest": "ab", "nbytes": 7},
    "note": None,
}


def test_a_record_is_written_as_it_was_read():
    """To the last byte: whole numbers stay whole, None is written unless it is a default."""
    record = from_json(Tree, json.loads(json.dumps(JSON)))
    assert record.leaves == (Leaf("a", 3), Leaf("b", 0))
    assert (record.span, record.ref.nbytes, record.late) == ((2, 5), 7, None)
    assert canonical_json(to_json(record)) == canonical_json(JSON)
    assert to_json(from_json(Tree, JSON | {"late": 4}))["late"] == 4


def test_messages_of_dask_are_read_as_json_is():
    """They arrive with tuples in the place of lists."""
    assert from_json(Tree, JSON | {"span": (2, 5), "leaves": tuple(JSON["leaves"])}) == from_json(Tree, JSON)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"span": [2]}, "'span' is [2], expected a list of 2"),
        ({"span": [2, -1]}, "'span' is -1, expected a whole number from 0 to 2**63 - 1"),
        ({"leaves": None}, "'leaves' is None, expected a list"),
        ({"leaves": [{"name": "a"}, {"name": "b", "count": True}]}, "'leaves[1].count' is True, expected a whole"),
        ({"leaves": [{"name": "a"}, 3]}, "'leaves[1]' is 3, expected an object"),
        ({"leaves": [{"name": 3}]}, "'leaves[0].name' is 3, expected text"),
        ({"leaves": [{"count": 3}]}, "'name' missing in 'leaves[0]'"),
        ({"weights": {"loss": "low"}}, "'weights.loss' is 'low', expected a number"),
        ({"weights": {"loss": True}}, "'weights.loss' is True, expected a number"),
        ({"by_name": {"x": {"name": "c", "size": 1}}}, "'size' unknown in 'by_name.x'"),
        ({"done": 1}, "'done' is 1, expected true or false"),
        ({"span": [2, 2**63]}, "expected a whole number from 0 to 2**63 - 1"),
        ({"weights": {"loss": 10**400}}, "expected a number, a whole one below 2**63"),
        ({"ref": {"name": "a", "digest": "b", "nbytes": 2**63}}, "expected a whole number from 0"),
        ({"ref": {"name": "a", "digest": "b", "nbytes": 1.5}}, "'ref.nbytes' is 1.5, expected a whole number"),
        ({"ref": {"name": "a", "digest": "b", "size": 1}}, "'nbytes' missing in 'ref'"),
        ({"ref": {"name": "a", "digest": "b", "nbytes": 1, "rows": 1}}, "'rows' unknown in 'ref'"),
        ({"another": 1, "again": 2}, "'again', 'another' unknown"),
        ({"late": "x"}, "'late' is 'x', expected a whole number"),
    ],
)
def test_a_field_that_is_not_as_expected_is_named(change, message):
    """With its place, in one line."""
    with pytest.raises(RecordError) as caught:
        from_json(Tree, JSON | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_field_is_named():
    """Only fields with a default may be missing."""
    with pytest.raises(RecordError, match="'done', 'note' missing"):
        from_json(Tree, {name: value for name, value in JSON.items() if name not in {"done", "note"}})


def test_unknown_fields_can_be_ignored():
    """At every depth, where what is read is no part of what a run stands upon."""
    extended = JSON | {"new": 1, "ref": JSON["ref"] | {"new": 2}, "leaves": [{"name": "a", "new": 3}]}
    read = from_json(Tree, extended, ignore_unknown=True)
    assert (read.leaves, read.ref.nbytes) == ((Leaf("a"),), 7)
