"""Legal positions, adjacency and legalisation, by hand on small blocks."""

import numpy as np
import pytest

from penstock.native.floorplan import (
    BlockSpec,
    PlacementCost,
    anneal,
    create_placement_cost,
    descend,
    generate_block,
    open_placement,
)

from ...support.environments.blocks import ariane, macro, needs_ariane, node, pin, port, read


def gridded(tmp_path, text, side=60.0, cells=6):
    plc = read(tmp_path, text)
    plc.set_canvas_size(side, side)
    plc.set_placement_grid(cells, cells)
    return plc


def test_hard_macros_keep_off_each_other_the_edge_and_blockages(tmp_path):
    """Abutting is legal, spacing and thresholds shift the border, and blockages of any rate keep hard macros out."""
    plc = gridded(tmp_path, macro("A", 20, 20, 25, 25) + node("B", type="MACRO", width=20.0, height=10.0))
    wanted = np.zeros((6, 6), int)
    wanted[:, 1:5] = 1
    assert (np.reshape(plc.get_node_mask(1), (6, 6)) != wanted).sum() == 9
    wanted[1:4, 1:4] = 0
    assert (np.reshape(plc.get_node_mask(1), (6, 6)) == wanted).all()
    plc.set_macro_macro_spacing(0.1, 0.1)
    wanted[1:4, 4] = 0  # a gap of 5 is left below and above
    assert (np.reshape(plc.get_node_mask_by_name("B"), (6, 6)) == wanted).all()
    plc.set_macro_macro_spacing(0, 0)
    plc.set_overlap_threshold(5)
    wanted[1:4, 1:5] = 1  # 5 shared in y is not more than the threshold
    wanted[2, 1:4] = 0
    plc.set_place_hard_macros_over_cells(True)
    assert (np.reshape(plc.get_node_mask(1), (6, 6)) == wanted).all()
    plc.set_overlap_threshold(0)
    plc.create_blockage(0, 45, 60, 60, 0.1)
    assert not np.reshape(plc.get_node_mask(1), (6, 6))[4:].any()
    assert plc.can_place_node(1, 1)
    assert not plc.can_place_node(1, 0)


def test_the_overlap_threshold_lets_no_hard_macro_into_a_blockage(tmp_path):
    """Neither a mask nor annealing lets one in; hard macros among themselves may share that length."""
    text = macro("A", 20, 20, 20, 20) + pin("o", "A", 0, 0, "i") + macro("B", 20, 20, 40, 40) + pin("i", "B", 0, 0)
    plc = gridded(tmp_path, text)
    plc.create_blockage(0, 0, 60, 18, 0.1)
    plc.set_overlap_threshold(5)
    plc.unplace_node(0)
    # On row 2 it would stand 3 um in the blockage.
    assert [row for row in range(6) if plc.can_place_node(0, 6 * row + 1)] == [3, 4]
    assert plc.legalize(only_hard=True)
    anneal(plc, moves=2000, seed=1)
    for hard in (0, 2):
        assert plc.get_node_location(hard)[1] >= 28 - 1e-5


def test_a_blockage_with_its_corners_exchanged_is_read_and_covers_nothing(tmp_path):
    """The header's blockages stay as they are, and such a one keeps nothing off, and adds to no density."""
    plc = gridded(tmp_path, macro("A", 20, 20, 30, 30))
    plc.save_placement(tmp_path / "a.plc")
    plain = plc.evaluate(), plc.get_node_mask(0)
    text = (tmp_path / "a.plc").read_text()
    (tmp_path / "b.plc").write_text("# Blockage : 50 10 10 50 0.5\n" + text)
    found = open_placement(tmp_path / "netlist.pb.txt", tmp_path / "b.plc")
    assert found.get_blockages() == [[50, 10, 10, 50, 0.5]]
    assert (found.evaluate(), found.get_node_mask(0)) == plain


def test_fixed_macros_turn(tmp_path):
    """Fixing is of coordinates alone, and methods return True where they succeed, as in the public evaluator."""
    plc = gridded(tmp_path, macro("A", 10, 10, 25, 25) + pin("i", "A", 2, 1))
    assert plc.fix_node_coord(0) is True
    assert plc.update_macro_orientation(0, "S") is True
    assert plc.get_macro_orientation(0) == "S"
    assert plc.get_node_location(1) == (23, 24)
    assert plc.update_macro_orientation_by_name("A", "FN") is True
    with pytest.raises(ValueError, match="orientation"):
        plc.update_macro_orientation(0, "E")
    assert plc.unfix_node_coord(0) is True
    assert plc.update_node_coords(0, 30, 30) is True
    assert plc.unplace_node(0) is True
    assert plc.place_node(0, 14) is True


def test_soft_macros_fill_cells_up_to_the_limit(tmp_path):
    """A cell takes what leaves it at most 1.001 full; while a node is placed it stands in its own way."""
    plc = gridded(tmp_path, macro("A", 20, 20, 30, 30) + macro("Grp_1", 10, 10, 5, 5))
    free = np.ones((6, 6), int)
    free[2:4, 2:4] = 0
    free[0, 0] = 0
    assert (np.reshape(plc.get_node_mask(1), (6, 6)) == free).all()
    plc.unplace_node(1)
    free[0, 0] = 1
    assert (np.reshape(plc.get_node_mask(1), (6, 6)) == free).all()
    plc.create_blockage(50, 50, 60, 60, 0.0012)
    assert plc.get_node_mask(1)[35] == 0


def test_nets_tie_the_driver_with_each_sink(tmp_path):
    """Both ways, once a sink, by the net's weight; ports of one cell are a cluster, in ascending order of cells."""
    text = (
        port("p", 59, 59, "A/i", weight=2.0)
        + port("q", 0, 0, "p")
        + port("r", 1, 1, "Grp_1/i")
        + macro("A", 5, 5, 10, 10)
        + pin("A/i", "A", 0, 0)
        + pin("A/o", "A", 0, 0, "Grp_1/i", "Grp_1/j", "A/i", weight=3.0)
        + macro("Grp_1", 5, 5, 20, 20)
        + pin("Grp_1/i", "Grp_1", 0, 0)
        + pin("Grp_1/j", "Grp_1", 0, 0)
    )
    plc = gridded(tmp_path, text)
    assert np.reshape(plc.get_macro_adjacency(), (2, 2)).tolist() == [[0, 6], [6, 0]]
    weights, cells = plc.get_macro_and_clustered_port_adjacency()
    assert cells == [0, 35]
    assert np.reshape(weights, (4, 4)).tolist() == [[0, 6, 0, 2], [6, 0, 1, 0], [0, 1, 0, 1], [2, 0, 1, 0]]


def test_legalisation_searches_by_manhattan_distance(tmp_path):
    """Largest first, then by index; around each node's cell, rows before columns; from outside at the lower right."""
    text = "".join(macro(f"M{i}", 10, 10, 15, 15) for i in range(9))
    plc = gridded(tmp_path, text, side=30.0, cells=3)
    assert plc.legalize()
    assert [plc.get_grid_cell_of_node(i) for i in range(9)] == [4, 1, 3, 5, 7, 0, 2, 6, 8]
    plc = gridded(tmp_path, macro("M", 10, 10, -5, 15) + macro("big", 10, 30.5, 15, 16), side=30.0, cells=3)
    assert not plc.legalize()  # higher than the canvas
    plc = gridded(tmp_path, macro("M", 10, 10, -5, 15), side=30.0, cells=3)
    assert plc.legalize()
    assert plc.get_grid_cell_of_node(0) == 2


def moved(plc, *phases, io_factor=1.0, current=True):
    columns = list(zip(*phases, strict=True))
    plc.optimize_stdcells(current, True, False, False, False, io_factor, *map(list, columns))


def test_springs_pull_and_overlaps_push(tmp_path):
    """The largest force along an axis moves its node by the largest move, others in proportion; no edge is touched."""
    text = (
        port("p", 0, 30, "Grp_1/i")
        + macro("Grp_1", 4, 4, 20, 30)
        + pin("Grp_1/i", "Grp_1", 0, 0)
        + pin("Grp_1/o", "Grp_1", 0, 0, "A/i", weight=0.5)
        + macro("A", 10, 10, 40, 40)
        + pin("A/i", "A", 0, 0)
        + macro("Grp_2", 4, 4, 20, 30)
    )
    plc = gridded(tmp_path, text)
    moved(plc, (1, 3.0, 1.0, 0.0))
    # 20 to the left and half of 20 to the right; up, half of 10.
    assert plc.get_node_location(1) == (17.0, 33.0)
    assert plc.get_node_location(6) == (20.0, 30.0)
    plc.update_node_coords(1, 20, 30)
    moved(plc, (1, 3.0, 0.0, 7.0))
    assert plc.get_node_location(1) == (17.0, 27.0)
    assert plc.get_node_location(6) == (23.0, 33.0)
    plc.update_node_coords(1, 4, 30)
    moved(plc, (1, 2.0, 1.0, 0.0))
    assert plc.get_node_location(1)[0] == 6.0  # pulled by A now
    plc.update_node_coords(1, 4, 30)
    moved(plc, (1, 2.0, 1.0, 0.0), io_factor=1000.0)
    assert plc.get_node_location(1)[0] == 4.0  # 2 to the left would touch the edge
    moved(plc, (0, 1.0, 0.0, 0.0), current=False)
    assert plc.get_node_location(6) == (30.0, 30.0)


def test_fixed_nodes_and_wrong_requests_are_refused(tmp_path):
    """Each says what is wrong, and changes nothing."""
    plc = gridded(tmp_path, macro("A", 10, 10, 25, 25) + pin("i", "A", 0, 0) + macro("Grp_1", 4, 4, 20, 30))
    plc.fix_node_coord(0)
    for wrong, message in (
        (lambda: plc.place_node(0, 0), "fixed"),
        (lambda: plc.unplace_node(0), "fixed"),
        (lambda: plc.place_node(1, 0), "pin"),
        (lambda: plc.place_node(2, 36), "36 cells"),
        (lambda: plc.place_node(3, 0), "3 nodes"),
        (lambda: plc.update_node_coords(2, 61, 0), "outside the canvas"),
        (lambda: plc.update_macro_orientation(2, "E"), "orientation"),
        (lambda: plc.get_node_index("B"), "no node"),
        (lambda: plc.set_placement_grid(0, 4), "columns"),
        (lambda: plc.create_blockage(0, 0, 1, 1, 1.5), "blockage"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    plc.unplace_all_nodes()
    assert [plc.is_node_placed(i) for i in range(3)] == [True, True, False]
    with pytest.raises(ValueError, match="not placed"):
        plc.get_node_location(2)


def overlapping(plc: PlacementCost) -> int:
    hard = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m)]
    at, size = np.array(plc.get_node_locations(hard)), np.array([plc.get_node_width_height(m) for m in hard])
    near = np.abs(at[:, None] - at[None]) < (size[:, None] + size[None]) / 2 - 1e-5
    return int(near.all(axis=2).sum()) - len(hard)


def test_searches_leave_better_legal_placements_and_the_same_ones(tmp_path):
    """Annealing and descent lower the cost without an overlap, and one seed gives one placement, another another."""
    netlist, initial = generate_block(tmp_path, BlockSpec(hard_macros=10, soft_macros=15))
    start = open_placement(netlist, initial)
    before = sum(w * c for w, c in zip((1, 1, 0.5), start.get_costs(), strict=True))
    lines = []
    seen: list[tuple[int, int]] = []
    for seed in (1, 1, 2):
        plc = PlacementCost(start)
        found = anneal(plc, moves=2000, soft_every=700, seed=seed, on_progress=lambda *both: seen.append(both))
        assert found.cost < before
        assert overlapping(plc) == 0
        lines.append(plc._plc_lines())
    assert lines[0] == lines[1] != lines[2]
    assert seen == [(1024, 2000)] * 3
    plc = PlacementCost(start)
    curve = descend(plc, passes=2)
    assert curve[0] == pytest.approx(before, rel=1e-12)
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] < curve[0]
    assert overlapping(plc) == 0
    assert start._plc_lines() != plc._plc_lines()


def test_descent_leaves_no_turn_that_would_be_better(tmp_path):
    """Turns are refused by a bound of their cost, which must not refuse a better one; congestion is smoothed."""
    netlist, initial = generate_block(tmp_path, BlockSpec(hard_macros=10, soft_macros=15))
    plc = create_placement_cost(netlist, initial, smooth_range=2.0)
    plc.legalize(only_hard=True)
    plc.place_soft_macros()
    curve = descend(plc, passes=20, only_orientations=True, place_soft=False, least_gain=1e-15)
    assert curve[-1] < curve[0]
    assert len(curve) < 20
    for macro_index in plc.get_macro_indices():
        if plc.is_node_soft_macro(macro_index):
            continue
        own = plc.get_macro_orientation(macro_index)
        for orientation in ("N", "FN", "S", "FS") if own in ("N", "FN", "S", "FS") else ("E", "FE", "W", "FW"):
            plc.update_macro_orientation(macro_index, orientation)
            cost = sum(w * c for w, c in zip((1, 1, 0.5), plc.get_costs(), strict=True))
            assert cost >= curve[-1] - 1e-12, (macro_index, own, orientation)
        plc.update_macro_orientation(macro_index, own)


@needs_ariane
def test_published_masks_and_adjacency_of_ariane133():
    """The empty mask of every hard macro, and the graph with clustered ports, have the published sizes."""
    plc = create_placement_cost(ariane("netlist.pb.txt.gz"), ariane("initial.plc"))
    weights, cells = plc.get_macro_and_clustered_port_adjacency()
    graph = np.reshape(weights, (915 + len(cells),) * 2)
    assert (len(graph), np.count_nonzero(np.triu(graph)), np.triu(graph).sum()) == (929, 9576, 41976)
    plc.unplace_all_nodes()
    hard = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m)]
    assert {sum(plc.get_node_mask(m)) for m in hard} == {456}


@needs_ariane
def test_legalisation_of_ariane133_is_legal():
    """All nodes find a cell, and hard macros come to overlap nowhere."""
    plc = open_placement(ariane("netlist.pb.txt.gz"), ariane("initial.plc"))
    assert plc.legalize()
    assert overlapping(plc) == 0
