"""The placers that `benchmarks.placing` compares: each returns a legal placement, whatever its budget."""

import sys

import pytest

from benchmarks.placing import __main__ as comparison
from benchmarks.placing import grouping, methods, scale
from penstock.native.floorplan import BlockSpec, create_placement_cost, generate_block
from penstock.native.floorplan.placing.chains import moves_within
from penstock.native.floorplan.placing.positions import positions_of
from penstock.native.floorplan.placing.starting import legality_problems


@pytest.mark.parametrize("name", methods.METHODS)
def test_each_method_returns_a_legal_placement_of_its_own(name, tmp_path, monkeypatch):
    """All macros are placed, the hard ones legally, and the start stays as it was."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    start = create_placement_cost(*generate_block(tmp_path, BlockSpec(hard_macros=5, soft_macros=8, columns=8, rows=8)))
    assert start.legalize(only_hard=True)
    start.place_soft_macros()
    before = positions_of(start)
    found = methods.METHODS[name](start, 0.05, 1)
    assert found is not start or name not in {"start", "one annealing"}
    assert positions_of(start) == before
    assert all(map(found.is_node_placed, found.get_macro_indices()))
    assert legality_problems(found) == []


def test_moves_follow_from_the_speed_and_from_what_longer_trials_gain():
    """In proportion where the speed is the same, more where it grew, and as many where the shorter trial was faster."""
    assert moves_within(5.0, [(1000, 1.0)]) == 5000
    assert moves_within(10.0, [(1000, 1.0), (4000, 4.0)]) == 10_000
    assert moves_within(10.0, [(1000, 0.5), (4000, 4.0)]) == 10_000
    assert 10_000 < moves_within(10.0, [(1000, 1.2), (4000, 4.0)]) < 12_000
    assert moves_within(0.0, [(1000, 1.0), (4000, 3.0)]) == 1


def test_a_comparison_that_can_not_begin_ends_with_one_line(tmp_path, monkeypatch):
    """Without the folder of real netlists it says what to set; a page of no results is refused, and nothing is made.

    So is one of other files.
    """
    results = tmp_path / "results"

    def said(*arguments):
        monkeypatch.setattr(sys, "argv", ["placing", "--results", str(results), *arguments])
        with pytest.raises(SystemExit) as end:
            comparison.main()
        return end.value.code

    monkeypatch.delenv("PENSTOCK_TEST_DATA", raising=False)
    monkeypatch.delenv("PENSTOCK_ARIANE133", raising=False)
    with pytest.raises(SystemExit, match="PENSTOCK_TEST_DATA is not set, expected a folder with flat/ariane136"):
        grouping.group("ariane136", tmp_path / "grouped", 1)
    with pytest.raises(SystemExit, match="PENSTOCK_ARIANE133 is not set, expected a folder with netlist"):
        scale.config_of(False, 1, 1, str(tmp_path))
    assert said().startswith(
        "PENSTOCK_TEST_DATA is not set, expected a folder with ariane133/netlist.pb.txt.gz: set it"
    )
    monkeypatch.setenv("PENSTOCK_TEST_DATA", str(tmp_path))
    assert said().startswith(f"PENSTOCK_TEST_DATA is {str(tmp_path)!r}, expected a folder with ariane133/")
    assert said("--page") == f"{results}: found no results, expected a folder with some; measure without --page first"
    assert not list(tmp_path.iterdir())
    results.mkdir()
    (results / "other.json").write_text('["no result"]')
    assert said("--page").startswith(
        f"{results / 'other.json'}: found other JSON, expected a result with block, method"
    )
    (results / "other.json").write_text('{"block": "ariane133", "cost": 1.0}')
    assert said("--page").startswith(
        f"{results / 'other.json'}: found other JSON, expected a result with block, method"
    )
    (results / "other.json").write_bytes(b"\xff{")
    assert said("--page").startswith(f"{results / 'other.json'}: can't be read ")
    assert [file.name for file in tmp_path.iterdir()] == ["results"]
