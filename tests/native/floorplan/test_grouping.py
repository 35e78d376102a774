"""Grouping of flat netlists: by hand on a few cells, and whole on a block of some hundreds."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.flows.cli.floorplans.app import commands
from penstock.native.floorplan import BlockFileError, PlacementCost, group_netlist, open_placement
from penstock.native.floorplan.grouping.clustered import write_clustered
from penstock.native.floorplan.grouping.fixed_groups import fixed_groups
from penstock.native.floorplan.grouping.flat import CELL, read_flat
from penstock.native.floorplan.grouping.partitioning import partition
from penstock.native.floorplan.grouping.spread import break_up, merge

from ...support.environments.blocks import DATA, cell, macro, needs_data, node, pin, port, read

pytest.importorskip("mtkahypar", reason="grouping partitions with Mt-KaHyPar")

CELLS = 240


def flat(folder: Path, text: str, side: float = 100.0, grid: int = 10) -> tuple[Path, Path]:
    """Writes a flat netlist and a placement of it."""
    plc = read(folder, text)
    plc.set_canvas_size(side, side)
    plc.set_placement_grid(grid, grid)
    plc.set_canvas_boundary_check(check=False)
    plc.save_placement(folder / "flat.plc")
    return folder / "netlist.pb.txt", folder / "flat.plc"


def made_up(folder: Path) -> tuple[Path, Path]:
    """Writes a block of four macros, twelve ports, and cells on a lattice that drive their neighbours."""
    rng = np.random.Generator(np.random.PCG64(5))
    side = math.isqrt(CELLS) + 1
    name = [f"u{i // 40}/c{i}" for i in range(CELLS)]
    text = "".join(port(f"p{i}", 0, 8.0 * i, name[i * 20]) for i in range(12))
    for m in range(4):
        text += macro(f"M{m}", 20, 10, 20 + 50 * (m % 2), 30 + 50 * (m // 2))
        for k in range(3):
            text += pin(f"M{m}/i{k}", f"M{m}", 2.0 * k, 1.0)
            text += pin(f"M{m}/o{k}", f"M{m}", -2.0 * k, 1.0, name[50 * m + k], weight=1.0 + k)
    for i in range(CELLS):
        near = np.clip(i + rng.integers(-1, 2, 3) + side * rng.integers(-1, 2, 3), 0, CELLS - 1)
        sinks = [name[j] for j in near if j != i]
        if i % 20 == 3:
            sinks.append(f"M{i // 20 % 4}/i{i // 80}")
        text += cell(name[i], 1.0 + i % 3, 6.0 * (i % side) + 2, 6.0 * (i // side) + 2, *sinks, weight=1.0 + i % 2)
    return flat(folder, text)


def test_cells_without_an_area_are_grouped_by_their_places(tmp_path):
    """Their centre of mass is that of equal ones; a netlist of no numbers would come out otherwise."""
    names = [f"c{i}" for i in range(8)]
    text = macro("M", 10, 10, 20, 20) + pin("M/p", "M", 0, 0, "c0", "c1")
    text += "".join(cell(name, 0.0, 50.0 + i, 50.0, names[(i + 1) % 8]) for i, name in enumerate(names))
    netlist, placement = group_netlist(*flat(tmp_path, text), tmp_path / "grouped", groups=2, threads=1)
    plc = open_placement(netlist, placement)
    for index in soft_macros(plc):
        x, y = plc.get_node_location(index)
        assert 50.0 <= x <= 57.0
        assert y == 50.0


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flat")
    return *made_up(folder), folder


@pytest.fixture(scope="module")
def grouped(block):
    netlist, placement, folder = block
    return group_netlist(netlist, placement, folder / "out", groups=20, threads=2)


def soft_macros(plc: PlacementCost) -> list[int]:
    return [index for index in plc.get_macro_indices() if plc.is_node_soft_macro(index)]


def test_ports_and_macros_stay_and_cells_become_soft_macros(block, grouped):
    """Their order, positions, settings and areas are the flat netlist's; no standard cell is left."""
    netlist, placement, _ = block
    was, plc = open_placement(netlist, placement), open_placement(*grouped)
    kept = [old for old in range(was.get_node_count()) if was.get_node_type(old) != "STDCELL"]
    for new, old in enumerate(kept):
        assert plc.get_node_name(new) == was.get_node_name(old)
        assert plc.get_node_type(new) == was.get_node_type(old)
        assert plc.get_node_location(new) == was.get_node_location(old)
        assert plc.get_node_width_height(new) == was.get_node_width_height(old)
    assert plc.get_canvas_width_height() == (100, 100)
    assert plc.get_grid_num_columns_rows() == (10, 10)
    assert plc.get_stdcells_count() == 0
    soft = soft_macros(plc)
    assert [plc.get_node_name(index) for index in soft] == [f"Grp_{i}" for i in range(len(soft))]
    assert min(soft) > len(kept) - 1
    assert 20 <= len(soft) <= 60
    area = sum(math.prod(plc.get_node_width_height(index)) for index in soft)
    cells = sum(math.prod(was.get_node_width_height(i)) for i in range(was.get_node_count()) if i not in set(kept))
    assert area * 0.5 == pytest.approx(cells, rel=1e-6)
    assert all(math.isfinite(cost) for cost in plc.evaluate().values())


def test_every_cell_is_in_one_group_at_every_step(block):
    """After partitioning, after breaking up and after merging; fixed groups keep what they have until then."""
    netlist, placement, _ = block
    flat_block = read_flat(netlist, placement)
    fixed = fixed_groups(flat_block)
    around = int(fixed.max()) + 1
    parts = partition(flat_block, fixed, around + 20, 0, 1)
    assert (parts[fixed >= 0] == fixed[fixed >= 0]).all()
    assert set(parts[flat_block.kinds == CELL]) <= set(range(around + 20))
    groups = np.where((fixed < 0) & (parts >= 0), parts + around, fixed)
    cells = flat_block.cells()
    assert (groups[cells] >= 0).all()
    before = groups.copy()
    break_up(flat_block, groups, 25.0)
    assert (groups[cells] >= 0).all()
    for group in np.unique(groups[cells]):
        assert len(np.unique(before[cells[groups[cells] == group]])) == 1
        nodes = np.flatnonzero(groups == group)
        assert np.ptp(flat_block.positions[nodes], axis=0).max() <= 25.0 + 1e-9
    broken = groups.copy()
    merge(flat_block, groups, 6, 30.0)
    assert (groups[cells] >= 0).all()
    for group in np.unique(broken[cells]):
        assert len(np.unique(groups[cells[broken[cells] == group]])) == 1
    assert len(np.unique(groups[cells])) < len(np.unique(broken[cells]))


def test_the_same_bytes_whatever_the_threads(block, grouped):
    """One thread and three give what two gave, into another folder too; another seed gives other groups."""
    netlist, placement, folder = block
    for threads in (1, 3):
        again = group_netlist(netlist, placement, folder / f"threads-{threads}", groups=20, threads=threads)
        assert [path.read_bytes() for path in again] == [path.read_bytes() for path in grouped]
    other = group_netlist(netlist, placement, folder / "seed", groups=20, seed=1)
    assert gzip.decompress(other[0].read_bytes()) != gzip.decompress(grouped[0].read_bytes())


def test_a_placement_of_the_clustered_netlist_will_do(block, grouped):
    """Ports, macros and settings are taken from it, its soft macros are not: the same groups come out again."""
    netlist, _, folder = block
    again = group_netlist(netlist, grouped[1], folder / "again", groups=20)
    assert again[0].read_bytes() == grouped[0].read_bytes()


def test_the_nets_of_a_clustered_netlist(tmp_path):
    """A net within a group is none; those of a group to one node are one of their sum; others keep their weight."""
    text = (
        port("p", 0, 0, "c0", "c1", "c2")
        + macro("A", 10, 10, 50, 50)
        + pin("A/i", "A", 1, 0)
        + pin("A/o", "A", -1, 0, "c3", weight=2.0)
        + cell("c0", 1, 10, 10, "c1", weight=7.0)
        + cell("c1", 2, 20, 10, "c2", weight=1.5)
        + cell("c2", 3, 70, 10, "A/i", "c0", "c1", "c3", weight=4.0)
        + cell("c3", 4, 90, 10, "A/i")
        + cell("c4", 2, 20, 40, "c3", "c4", "no such node", weight=2.5)
    )
    netlist, placement = flat(tmp_path, text)
    block = read_flat(netlist, placement)
    groups = np.array([-1, -1, -1, -1, 0, 0, 1, 1, 0])
    plc = open_placement(*write_clustered(block, groups, 0.5, tmp_path / "out", "By hand."))
    nets = {
        plc.get_node_name(index): ([plc.get_node_name(sink) for sink in sinks], plc.get_node_weight(index))
        for index in range(plc.get_node_count())
        if plc.get_node_type(index) != "MACRO" and (sinks := plc.get_fan_outs_of_node(index))
    }
    assert nets == {
        "p": (["Grp_0/Pinput", "Grp_1/Pinput"], 1.0),
        "A/o": (["Grp_1/Pinput"], 2.0),
        "Grp_0/Poutput_single_0": (["Grp_1/Pinput"], 4.0),  # 1.5 of c1 and 2.5 of c4
        "Grp_1/Poutput_multi_0": (["A/i", "Grp_0/Pinput"], 4.0),
        "Grp_1/Poutput_single_0": (["A/i"], 1.0),
    }
    assert plc.get_total_net_weight() == 12.0
    first, second = soft_macros(plc)
    assert plc.get_node_width_height(first) == (10.0, 1.0)  # a cell wide, and twice the cells' area
    assert plc.get_node_width_height(second) == pytest.approx((10.0, 1.4))
    assert plc.get_node_location(first) == (18.0, 22.0)
    assert plc.get_node_location(second) == pytest.approx((570 / 7, 10.0), rel=1e-5)


def test_fixed_groups_take_what_is_next_to_macros_and_near_ports(tmp_path):
    """Drivers and sinks of a macro's pins are with it; ports within a cell's length share a group, side by side."""
    text = (
        port("left0", 0, 30, "c0")
        + port("left1", 0, 39)
        + port("left2", 0, 41)
        + port("top", 35, 100)
        + macro("A", 10, 10, 50, 50)
        + pin("A/i", "A", 1, 0)
        + pin("A/o", "A", -1, 0, "c1", "c0")
        + cell("c0", 1, 10, 10, "c4")
        + cell("c1", 1, 10, 10, "c3")
        + cell("c2", 1, 10, 10, "A/i", "top")
        + cell("c3", 1, 10, 10)
        + cell("c4", 1, 10, 10)
    )
    found = fixed_groups(read_flat(*flat(tmp_path, text)))
    # left0, left1, left2, top, A, its pins, c0 (of left0, which is before A/o), c1, c2 (of top), c3, c4
    assert found.tolist() == [1, 1, 2, 3, -1, 0, 0, 1, 0, 3, -1, -1]


def test_wide_groups_are_broken_into_squares_and_small_ones_join_their_neighbours(tmp_path):
    """Only the side that is too long is cut; the middle keeps its number, and what is far away stays alone."""
    at = (0, 0), (40, 10), (50, 10), (60, 10), (100, 20), (100, 80)
    text = "".join(cell(f"c{i}", 1, x, y, f"c{(i + 1) % 6}") for i, (x, y) in enumerate(at)) + macro("A", 1, 1, 0, 0)
    block = read_flat(*flat(tmp_path, text))
    groups = np.array([0, 0, 0, 0, 0, 1, -1])
    break_up(block, groups, 40.0)
    assert groups.tolist() == [2, 0, 0, 0, 3, 1, -1]
    merge(block, groups, 1, 65.0)
    # The first to be merged is c5, which is 60 from c4; and c0, which is 60 from the middle, follows.
    assert groups.tolist() == [0, 0, 0, 0, 3, 3, -1]
    merge(block, groups, 1, 200.0)
    assert groups.tolist() == [0, 0, 0, 0, 3, 3, -1]
    merge(block, groups, 2, 200.0)
    assert groups.tolist() == [0, 0, 0, 0, 0, 0, -1]


def test_what_cannot_be_grouped_is_refused_by_name(block, grouped, tmp_path, monkeypatch):
    """Each message names the file or the setting, what was found, and what to do."""
    netlist, placement, _ = block
    with pytest.raises(BlockFileError, match=r"soft macros .* expected a netlist before clustering"):
        group_netlist(*grouped, tmp_path)
    (tmp_path / "bare").mkdir()
    bare = flat(tmp_path / "bare", macro("A", 1, 1, 5, 5) + port("p", 0, 0))
    with pytest.raises(BlockFileError, match="found 2 nodes, none of them a standard cell"):
        group_netlist(*bare, tmp_path)
    (tmp_path / "unplaced").mkdir()
    text = "".join(node(f"c{i}", type="stdcell", width=1.0, height=1.0) for i in (0, 1))
    with pytest.raises(BlockFileError, match="found 2 standard cells without a position"):
        group_netlist(*flat(tmp_path / "unplaced", text), tmp_path)
    with pytest.raises(BlockFileError, match=r"no\.plc: cannot be read"):
        group_netlist(netlist, tmp_path / "no.plc", tmp_path)
    with pytest.raises(BlockFileError, match=r"bare/flat\.plc:\d+: found node 0 .* expected a placement of"):
        group_netlist(netlist, bare[1], tmp_path)
    with pytest.raises(ValueError, match=r"of the 240 standard cells in .* only \d+ are not next to a macro or a port"):
        group_netlist(netlist, placement, tmp_path, groups=CELLS)
    for wrong, message in (
        ({"groups": -1}, "groups is -1"),
        ({"seed": 2**31}, "seed is"),
        ({"threads": 0}, "threads is 0"),
        ({"utilisation": 0.0}, "utilisation is 0.0, expected a share above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            group_netlist(netlist, placement, tmp_path, **wrong)
    monkeypatch.setitem(sys.modules, "mtkahypar", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'penstock-rl\[floorplan\]'"):
        group_netlist(netlist, placement, tmp_path)


def test_from_a_flat_netlist_to_a_better_placement(block, tmp_path):
    """`group` writes what `anneal` reads; a netlist without cells ends it with one line and exit code 1."""
    netlist, placement, _ = block

    def run(*arguments):
        done = CliRunner().invoke(commands, [str(argument) for argument in arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    paths = run("group", netlist, placement, tmp_path / "out", "--groups", 15, "--threads", 1).split()
    assert paths == [str(tmp_path / "out" / name) for name in ("netlist.pb.txt.gz", "initial.plc")]
    found = json.loads(run("anneal", *paths, tmp_path / "better.plc", "--moves", 500, "--json"))
    assert found["after"]["weighted_cost"] <= found["before"]["weighted_cost"]
    command = [sys.executable, "-c", "from penstock.flows.cli.main import main; main()", "floorplan", "group"]
    done = subprocess.run([*command, *paths, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {paths[0]}: found ")
    assert "Traceback" not in done.stderr


@needs_data
@pytest.mark.slow
def test_ariane133_is_grouped_much_as_published(tmp_path):
    """The published clustering has 782 soft macros and 12,422 nets of the weight 22,584; areas agree to float32."""
    given = Path(str(DATA)) / "flat"
    paths = group_netlist(given / "ariane133.pb.txt.gz", given / "ariane133.initial.plc", tmp_path)
    plc = open_placement(*paths)
    published = Path(str(DATA)) / "ariane133"
    wanted = open_placement(published / "netlist.pb.txt.gz", published / "initial.plc")
    assert plc.get_area() == pytest.approx(wanted.get_area(), rel=1e-7)
    assert plc.get_soft_macros_count() == pytest.approx(782, rel=0.05)
    assert plc.get_net_count() == pytest.approx(12422, rel=0.1)
    assert plc.get_total_net_weight() == pytest.approx(22584, rel=0.1)
    assert plc.get_hard_macro_pins_count() == wanted.get_hard_macro_pins_count()
    for mine, theirs in zip(plc.get_costs(), wanted.get_costs(), strict=True):
        assert mine == pytest.approx(theirs, rel=0.05)
