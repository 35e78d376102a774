"""The placer: the same bytes whatever happens on the way, legal results, and refusals that name what to do."""

import json
import math
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.native.floorplan import (
    PUBLISHED,
    BlockFileError,
    BlockSpec,
    PlacementCost,
    create_placement_cost,
    generate_block,
    open_placement,
    place,
    proposals_for,
)
from penstock.native.floorplan.placing.chains import Job, run_chains
from penstock.native.floorplan.placing.def_file import UNITS_PER_UM, def_text
from penstock.native.floorplan.placing.positions import positions_of, put_at, weighted_cost
from penstock.native.floorplan.placing.starting import legality_problems, make_legal
from penstock.native.floorplan.placing.state import State
from penstock.native.floorplan.searching import temperatures_of

from ...support.environments.blocks import macro, node, pin, port, read

SPEC = BlockSpec(hard_macros=6, soft_macros=8, ports=8, columns=10, rows=10)
SMALL = {"moves": 900, "threads": 2, "segments": 6, "seed": 4}
SAME = ("best.plc", "best.def", "before.png", "after.png")
"""Files that depend on no time."""


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    return generate_block(tmp_path_factory.mktemp("block"), SPEC)


@pytest.fixture(scope="module")
def undisturbed(block, tmp_path_factory):
    """The folder of a search that nothing stopped."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    place(create_placement_cost(*block), out=out, **SMALL)
    return out


def timeless(out: Path) -> dict[str, object]:
    """Return everything in a folder but the times."""
    curve, result = (json.loads((out / name).read_text()) for name in ("curve.json", "result.json"))
    del result["seconds"], result["placement"]
    files = {name: (out / name).read_bytes() for name in SAME}
    return {**files, "curve": [{**point, "seconds": 0} for point in curve], "result": result}


def test_the_same_seed_moves_and_threads_give_the_same_bytes(block, undisturbed, tmp_path):
    """A repetition is equal in all but its times, and a search without a folder finds the same positions."""
    plc, inside = create_placement_cost(*block), create_placement_cost(*block)
    found = place(plc, out=tmp_path / "again", **SMALL)
    assert timeless(tmp_path / "again") == timeless(undisturbed)
    assert place(inside, **SMALL).placement is None
    assert positions_of(inside) == positions_of(plc)
    assert found.cost < found.start_cost
    assert found.judged == found.moves * found.threads == 1800
    other = create_placement_cost(*block)
    place(other, **{**SMALL, "seed": 5})
    assert positions_of(other) != positions_of(plc)


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(block, threads):
    """Each is a search of its own, whose best cost never rises along its curve."""
    plc = create_placement_cost(*block)
    found = place(plc, **{**SMALL, "threads": threads})
    assert found.judged == 900 * threads
    assert found.cost == weighted_cost(plc, (1.0, 1.0, 0.5)) < found.start_cost


def test_worse_chains_continue_from_the_best(block):
    """After the first of several segments the worse half has the best one's positions, and the others their own."""
    seen = []

    def stop(progress):
        seen.append(progress)
        if progress.segments_done == 1:
            raise KeyboardInterrupt

    out = Path(block[0]).parent / "stopped"
    with pytest.raises(KeyboardInterrupt):
        place(create_placement_cost(*block), out=out, on_progress=stop, **{**SMALL, "threads": 4})
    state = State.decode((out / "state.json").read_bytes(), "state.json")
    plc = create_placement_cost(*block)
    proposals = proposals_for(plc)
    first, last = temperatures_of(plc, proposals, None, None)
    job = Job(plc, (1.0, 1.0, 0.5), proposals, first, last, 4)
    found = run_chains(job, [positions_of(job.base)] * 4, 150, (first, job.temperature(1 / 6)), 0, lambda _: None)
    order = sorted(range(4), key=lambda chain: (found[chain].cost, chain))
    expected = [found[order[0]] if chain in order[2:] else found[chain] for chain in range(4)]
    assert state.costs == tuple(one.cost for one in expected)
    assert state.chains == tuple(one.positions for one in expected)
    assert seen[-1].best == found[order[0]].cost


KILLED = """
import json, os, signal, sys
from penstock.native.floorplan import create_placement_cost, place
netlist, initial, out, at, small = sys.argv[1:]
def kill(progress):
    if progress.segments_done >= int(at):
        os.kill(os.getpid(), signal.SIGKILL)
place(create_placement_cost(netlist, initial), out=out, on_progress=kill, **json.loads(small))
"""


def test_killed_at_any_segment_it_ends_with_the_same_bytes(block, undisturbed, tmp_path):
    """Killed before the first segment, on the way and after the last, and continued: as if nothing had happened."""
    out = tmp_path / "out"
    for segments_done in (0, 3, 6):
        command = [sys.executable, "-c", KILLED, *block, out, str(segments_done), json.dumps(SMALL)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert State.decode((out / "state.json").read_bytes(), "state").done == segments_done
        assert not (out / "result.json").exists()
    (out / ".17-state.json").write_bytes(b"half a st")  # as a kill within a write leaves it
    place(create_placement_cost(*block), out=out, **SMALL)
    assert timeless(out) == timeless(undisturbed)
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in undisturbed.iterdir())


def test_a_finished_folder_gives_its_result_again(block, undisturbed):
    """Nothing is searched, and threads and segments need not be given again."""
    before = (undisturbed / "state.json").read_bytes()
    found = place(create_placement_cost(*block), out=undisturbed, moves=900, seed=4)
    assert json.loads((undisturbed / "result.json").read_text())["cost"] == found.cost
    assert (undisturbed / "state.json").read_bytes() == before


def test_another_search_is_refused_unless_it_begins_anew(block, tmp_path):
    """The message names what differs; `again` replaces the state."""
    out = tmp_path / "out"
    place(create_placement_cost(*block), out=out, **SMALL)
    for changed, says in (
        ({"seed": 5}, "seed 4, and is asked for 5"),
        ({"moves": 901}, "moves 900, and is asked for 901"),
        ({"threads": 1}, "threads 2"),
        ({"weights": (1.0, 0.5, 0.5)}, "weights"),
    ):
        with pytest.raises(ValueError, match=f"{says}.*another OUT, or --again"):
            place(create_placement_cost(*block), out=out, **{**SMALL, **changed})
    moved = create_placement_cost(*block)
    moved.update_node_coords(moved.get_macro_indices()[0], 100.0, 100.0)
    with pytest.raises(ValueError, match=r"was begun with placement [0-9a-f]{12}…"):
        place(moved, out=out, **SMALL)
    with pytest.raises(ValueError, match="was begun with congestion grid"):
        place(open_placement(*block), out=out, **SMALL)
    assert place(create_placement_cost(*block), out=out, again=True, **{**SMALL, "seed": 5}).seed == 5


def test_a_damaged_state_is_refused(block, undisturbed, tmp_path):
    """Cut short, changed, of another format, or no state at all: one message with a way out."""
    whole = (undisturbed / "state.json").read_bytes()
    fields = json.loads(whole)
    assert State.decode(whole, "state").encode() == whole
    for data, says in (
        (whole[:-9], "no state of a placement"),
        (b"[]", "no state of a placement"),
        (b"[" * 100_000, "no state of a placement"),
        (whole.replace(b'"done": 6', b'"done": 5'), "is damaged"),
        (json.dumps({**fields, "format": 99}).encode(), "found format 99, expected"),
    ):
        (tmp_path / "state.json").write_bytes(data)
        with pytest.raises(ValueError, match=f"state.json: .*{says}.*--again"):
            place(create_placement_cost(*block), out=tmp_path, **SMALL)


def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_made(block, tmp_path):
    """A file, another folder's content, and a place where no folder can be made."""
    (tmp_path / "file").write_text("milk")
    for out, says in (
        (tmp_path / "file", "found a file, expected a folder"),
        (tmp_path, "found 'file' and no state.json"),
        (tmp_path / "file" / "out", "cannot be made"),
    ):
        with pytest.raises(ValueError, match=says):
            place(create_placement_cost(*block), out=out, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_searches_do_not_share_a_folder(block, tmp_path):
    """The second is refused while the first runs."""
    refused = []

    def second(progress):
        if progress.segments_done == 1 and not refused:
            with pytest.raises(ValueError, match="another process places into it now"):
                place(create_placement_cost(*block), out=tmp_path / "out", **SMALL)
            refused.append(progress)

    place(create_placement_cost(*block), out=tmp_path / "out", on_progress=second, **SMALL)
    assert refused


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"minutes": 0.0}, "minutes is 0.0"),
        ({"minutes": -1.0}, "minutes is -1.0"),
        ({"minutes": math.nan}, "minutes is nan"),
        ({"minutes": math.inf}, "minutes is inf"),
        ({"minutes": 1.0, "moves": 5}, "leave the other out"),
        ({"moves": 0}, "moves is 0"),
        ({"moves": 5, "threads": 0}, "threads is 0"),
        ({"moves": 5, "segments": 0}, "segments is 0"),
        ({"moves": 5, "seed": -1}, "seed is -1"),
        ({"moves": 5, "weights": (1.0, -1.0, 1.0)}, "weights are"),
        ({"moves": 5, "last_temperature": 0.0}, "temperatures go from"),
    ],
)
def test_invalid_arguments_are_refused(block, tmp_path, arguments, says):
    """They are named, and nothing is made."""
    with pytest.raises(ValueError, match=says):
        place(create_placement_cost(*block), out=tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_a_time_becomes_moves(block, tmp_path):
    """The moves that are reckoned from a time give the same bytes without it."""
    place(create_placement_cost(*block), minutes=0.01, threads=2, out=tmp_path / "timed")
    state = State.decode((tmp_path / "timed" / "state.json").read_bytes(), "state")
    arguments = {"moves": state.moves, "threads": 2, "segments": state.segments}
    place(create_placement_cost(*block), out=tmp_path / "counted", **arguments)
    assert [(tmp_path / "timed" / name).read_bytes() for name in SAME] == [
        (tmp_path / "counted" / name).read_bytes() for name in SAME
    ]


def test_costs_are_those_of_the_written_file(block, undisturbed):
    """Read again, with its six digits; and no node is elsewhere by more than those."""
    result = json.loads((undisturbed / "result.json").read_text())
    plc = create_placement_cost(block[0], undisturbed / "best.plc")
    assert weighted_cost(plc, (1.0, 1.0, 0.5)) == result["cost"]
    assert plc.evaluate()["wirelength"] == result["wirelength"]
    assert legality_problems(plc, 1e-3) == []


def test_the_header_of_the_best_placement_gives_the_same_costs(block, undisturbed):
    """As `penstock floorplan cost` opens it: soft macros are squares there too, and hard ones need the same gap."""
    result = json.loads((undisturbed / "result.json").read_text())
    plc = open_placement(block[0], undisturbed / "best.plc")
    assert plc.evaluate() == {name: result[name] for name in plc.evaluate()}
    assert plc.get_macro_macro_spacing() == (0.1, 0.1)
    assert "# Soft macros : square\n" in (undisturbed / "best.plc").read_text()


def test_positions_are_kept_to_the_last_bit(block):
    """Through JSON, too; what was fixed stays fixed."""
    plc = create_placement_cost(*block)
    place(plc, **SMALL)
    other = create_placement_cost(*block)
    put_at(other, tuple(map(tuple, json.loads(json.dumps(positions_of(plc))))))
    assert positions_of(other) == positions_of(plc)
    assert other.get_costs() == plc.get_costs()


def test_def_has_corners_in_database_units(undisturbed, block):
    """Hard macros alone are components, by their lower left corners; ports are pins with a direction."""
    text, plc = (undisturbed / "best.def").read_text(), create_placement_cost(block[0], undisturbed / "best.plc")
    assert text.startswith("VERSION 5.8 ;\n")
    assert "\nDIEAREA ( 0 0 ) ( 800000 800000 ) ;\n" in text
    found = re.findall(r"^- (\S+) macro_(\d+)x(\d+) \+ PLACED \( (\d+) (\d+) \) (\w+) ;$", text, re.MULTILINE)
    assert len(found) == SPEC.hard_macros
    for name, *numbers, orientation in found:
        index = plc.get_node_index(name)
        sides, low = plc.get_node_width_height(index), [int(number) / UNITS_PER_UM for number in numbers[2:]]
        assert [int(number) / UNITS_PER_UM for number in numbers[:2]] == pytest.approx(sides, abs=3e-4)
        centre = [corner + side / 2 for corner, side in zip(low, sides, strict=True)]
        assert centre == pytest.approx(plc.get_node_location(index), abs=2e-3)
        assert orientation == plc.get_macro_orientation(index)
    assert len(re.findall(r"^- P\d+ \+ NET P\d+ \+ DIRECTION (?:IN|OUT)PUT .* \+ FIXED", text, re.MULTILINE)) == 8
    assert text.endswith("END PINS\nEND DESIGN\n")


def test_def_turns_a_cell_into_the_outline_of_its_macro(undisturbed, block, tmp_path):
    """A reader turns the cell by its orientation: of a quarter turn, the cell's sides are the macro's exchanged."""
    node = create_placement_cost(*block).get_node_index("M0")
    before, named, after = block[0].read_text().partition('name: "M0"')
    narrow = re.sub(r'(key: "width"\s+value \{\s*f: )\S+', r"\g<1>20.0", after, count=1)
    (tmp_path / "narrow.pb.txt").write_text(before + named + narrow)
    turned = re.sub(rf"^({node} \S+ \S+) \w+ ", r"\1 E ", (undisturbed / "best.plc").read_text(), flags=re.MULTILINE)
    (tmp_path / "turned.plc").write_text(turned)
    plc = create_placement_cost(tmp_path / "narrow.pb.txt", tmp_path / "turned.plc")
    width, height = (round(side * UNITS_PER_UM) for side in plc.get_node_width_height(node))
    assert width != height
    assert re.search(rf"^- M0 macro_{height}x{width} \+ PLACED .* E ;$", def_text(plc), re.MULTILINE)


def test_a_fixed_macro_stays_and_is_marked(block, tmp_path):
    """FIXED in the DEF, at the place that it had."""
    plc = create_placement_cost(*block, fixed_macros="M0")
    index = plc.get_node_index("M0")
    before = plc.get_node_location(index)
    place(plc, out=tmp_path / "out", **SMALL)
    assert plc.get_node_location(index) == before
    assert re.search(r"^- M0 \S+ \+ FIXED ", (tmp_path / "out" / "best.def").read_text(), re.MULTILINE)


def test_a_legal_start_stays_and_another_is_legalised(block):
    """A placement that overlaps, or lacks a place, is made legal first; a legal one keeps every position."""
    plc = create_placement_cost(*block)
    before = positions_of(plc)
    assert not make_legal(plc)
    assert positions_of(plc) == before
    hard = [macro for macro in plc.get_macro_indices() if not plc.is_node_soft_macro(macro)]
    plc.update_node_coords(hard[0], *plc.get_node_location(hard[1]))
    assert legality_problems(plc)[0] == "M0 and M1 overlap"
    assert make_legal(plc)
    assert legality_problems(plc) == []
    plc.unplace_all_nodes()
    found = place(plc, **SMALL)
    assert (found.legalised, found.legal, found.problems) == (True, True, ())


def test_packing_is_tried_where_near_places_fail(tmp_path):
    """One macro in the middle leaves no room for the other; packed from an edge, both have some."""
    plc = read(tmp_path, macro("M0", 10, 10, 12, 5) + macro("M1", 10, 10, 12, 5) + macro("Grp_0", 1, 1, 5, 5))
    plc.set_canvas_size(24.0, 10.0)
    plc.set_placement_grid(12, 1)
    near = PlacementCost(plc)
    assert not near.legalize(only_hard=True)
    assert make_legal(plc)
    assert legality_problems(plc) == []


def test_a_block_without_room_is_refused(tmp_path):
    """With its numbers, and advice."""
    plc = read(tmp_path, macro("M0", 15, 15, 10, 10) + macro("M1", 15, 15, 10, 10))
    plc.set_canvas_size(20.0, 20.0)
    plc.set_placement_grid(8, 8)
    with pytest.raises(ValueError, match=r"all 2 hard macros: they take 112% of a canvas of 20 x 20 um.*finer grid"):
        place(plc, moves=10)


def test_problems_of_legality_are_named(tmp_path):
    """Out of the canvas, on another, on a blockage; fixed macros among themselves are nobody's to move."""
    plc = read(tmp_path, macro("A", 4, 4, 1, 5) + macro("B", 4, 4, 12, 12) + macro("C", 4, 4, 13, 12))
    plc.set_canvas_size(20.0, 20.0)
    plc.create_blockage(0, 6, 2, 8, 0.5)
    assert legality_problems(plc) == ["A stands out of the canvas", "B and C overlap", "A is on a blockage"]
    assert legality_problems(plc, allowed_um=3.5) == []
    for index in (1, 2):
        plc.fix_node_coord(index)
    assert legality_problems(plc)[1:] == ["A is on a blockage"]
    plc.set_overlap_threshold(5.0)  # a length that two macros may share, and none that one shares with a blockage
    assert legality_problems(plc) == ["A stands out of the canvas", "A is on a blockage"]


def test_small_and_odd_blocks(tmp_path):
    """One hard macro, none, only fixed ones: all are placed as far as there is something to place."""
    ends = port("p", 0, 10, "A/i") + pin("A/i", "A", 0, 0) + pin("A/o", "A", 1, 1, "Grp_0/i")
    soft = macro("Grp_0", 2, 2, 10, 10) + pin("Grp_0/i", "Grp_0", 0, 0)
    one = read(tmp_path, ends + macro("A", 4, 4, 10, 10) + soft)
    none = read(tmp_path, port("p", 0, 10, "Grp_0/i") + soft)
    for plc in (one, none):
        plc.set_canvas_size(20.0, 20.0)
    found = place(one, **SMALL)
    assert found.judged > 0
    assert found.legal
    assert place(none, minutes=0.01, threads=2).judged > 0  # soft macros move too
    assert place(none, proposals=PUBLISHED, minutes=0.01, threads=2).judged == 0
    bare = read(tmp_path, port("p", 0, 0))
    with pytest.raises(ValueError, match="has no macros"):
        place(bare, **SMALL)


def test_ports_without_a_place_are_counted(tmp_path):
    """They are left out of costs, and have no position in the DEF."""
    text = node("p", "A/i", type="port") + macro("A", 4, 4, 10, 10) + pin("A/i", "A", 0, 0)
    plc = read(tmp_path, text)
    plc.set_canvas_size(20.0, 20.0)
    found = place(plc, out=tmp_path / "out", **SMALL)
    assert found.unplaced_ports in {0, 1}
    line = re.search(r"^- p .*$", (tmp_path / "out" / "best.def").read_text(), re.MULTILINE)
    assert line is not None
    assert ("FIXED" in line[0]) == (found.unplaced_ports == 0)


def test_another_blocks_placement_is_refused(block, tmp_path):
    """By the counts in its header, which tell blocks apart whose nodes happen to fit."""
    other = generate_block(tmp_path, BlockSpec(hard_macros=5, soft_macros=9, ports=8))
    for make in (create_placement_cost, open_placement):
        with pytest.raises(BlockFileError, match=r"counts 5 HARD_MACROs, and the netlist has 6; this is the"):
            make(block[0], other[1])
    bare = tmp_path / "bare.plc"
    bare.write_text("# User comments:\n# PORTs : 3\n" + create_placement_cost(*block)._plc_lines())
    create_placement_cost(block[0], bare)


def test_an_error_in_a_progress_call_ends_all_chains(block):
    """The caller's exception comes out, and the chains have ended by then."""

    def fail(progress):
        raise RuntimeError("the screen is full")

    with pytest.raises(RuntimeError, match="the screen is full"):
        place(create_placement_cost(*block), on_progress=fail, **{**SMALL, "moves": 10_000_000})
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chain")]


def test_a_copy_is_left_as_it_is(block):
    """The search changes the evaluator that it is given, and no other."""
    plc = create_placement_cost(*block)
    copy = PlacementCost(plc)
    before = positions_of(copy)
    place(plc, **SMALL)
    assert positions_of(copy) == before
