"""Costs of placements: by hand on small blocks, and the published ones on a real block."""

import numpy as np
import pytest

from penstock.native.floorplan import (
    BlockSpec,
    PlacementCost,
    anneal,
    create_placement_cost,
    generate_block,
    open_placement,
)

from ...support.environments.blocks import ariane, macro, needs_ariane, pin, port, read

# One track a cell in each direction, so that congestion is the number of wires.
SIDE = 60.0
CELLS = 6
GIVEN = {
    "two": ([(0, 0), (3, 2)], {"across": [(0, 0), (0, 1), (0, 2)], "up": [(0, 3), (1, 3)]}),
    "two, back": ([(3, 2), (0, 0)], {"across": [(2, 0), (2, 1), (2, 2)], "up": [(0, 0), (1, 0)]}),
    "three in a slope": ([(0, 0), (4, 4), (2, 2)],
        {"across": [(0, 0), (0, 1), (2, 2), (2, 3)], "up": [(0, 2), (1, 2), (2, 4), (3, 4)]}),
    "three, right ones above": ([(2, 3), (0, 0), (2, 1)],
        {"across": [(0, 0), (0, 1)], "up": [(0, 2), (1, 2), (2, 2)]}),
    "three, right ones level": ([(0, 3), (2, 1), (4, 1)],
        {"across": [(3, 0), (3, 1), (1, 2), (1, 3)], "up": [(1, 2), (2, 2)]}),
    "three as a T": ([(1, 0), (4, 2), (2, 4)],
        {"across": [(2, 1), (2, 2), (2, 3)], "up": [(0, 1), (1, 1), (2, 2), (3, 2)]}),
    "four": ([(0, 0), (1, 0), (0, 1), (1, 1)], {"across": [(0, 0), (0, 0)], "up": [(0, 0), (0, 1)]}),
}  # fmt: skip


def routed(tmp_path, cells, weight=1.0):
    """One net of ports in the middle of these (column, row) cells, the first driving."""
    centres = [((column + 0.5) * 10, (row + 0.5) * 10) for column, row in cells]
    names = [f"p{i}" for i in range(len(cells))]
    text = port(names[0], *centres[0], *names[1:], weight=weight)
    plc = read(tmp_path, text + "".join(port(n, *c) for n, c in zip(names[1:], centres[1:], strict=True)))
    plc.set_canvas_size(SIDE, SIDE)
    plc.set_placement_grid(CELLS, CELLS)
    plc.set_routes_per_micron(0.1, 0.1)
    return plc


def counted(cells):
    grid = np.zeros((CELLS, CELLS))
    for row, column in cells:
        grid[row, column] += 1
    return grid


def square(values):
    return np.array(values).reshape(CELLS, CELLS)


@pytest.mark.parametrize("case", GIVEN)
def test_nets_take_the_routes_of_the_specification(case, tmp_path):
    """Each rule for nets of two, three and more cells, weighed by the net's weight."""
    cells, wanted = GIVEN[case]
    plc = routed(tmp_path, cells, weight=2.0)
    assert (square(plc.get_horizontal_routing_congestion()) == 2 * counted(wanted["across"])).all()
    assert (square(plc.get_vertical_routing_congestion()) == 2 * counted(wanted["up"])).all()


def test_nets_that_leave_the_canvas_are_not_routed_but_have_a_length(tmp_path):
    """A pin outside takes its whole net out of congestion, and stays in the wirelength."""
    plc = routed(tmp_path, [(0, 0), (3, 2), (9, 9)])
    assert not np.any(plc.get_horizontal_routing_congestion())
    assert plc.get_wirelength() == 180.0
    plc.unplace_node(2)
    assert plc.get_wirelength() == 50.0  # one that is not placed is left out
    assert np.sum(plc.get_horizontal_routing_congestion()) == 3
    plc.unplace_node(1)
    assert (plc.get_wirelength(), plc.get_congestion_cost()) == (0.0, 0.0)


def test_congestion_is_smoothed_along_rows_and_columns(tmp_path):
    """Vertical demand spreads along its row and horizontal along its column, over the cells that there are."""
    plc = routed(tmp_path, [(1, 1), (2, 2)])
    plc.set_congestion_smooth_range(2)
    across, up = square(plc.get_horizontal_routing_congestion()), square(plc.get_vertical_routing_congestion())
    assert across[:, 1].tolist() == [0.25, 0.25, 0.25, 0.25, 0, 0]
    assert across.sum() == 1
    assert up[1].tolist() == [0.2, 0.2, 0.2, 0.2, 0.2, 0]
    assert up.sum() == 1


def test_hard_macros_take_tracks_and_soft_ones_none(tmp_path):
    """A macro that covers its rows and columns partly leaves the top row's and the right column's tracks."""
    text = macro("A", 20, 20, 15, 15) + macro("Grp_1", 30, 30, 30, 30)
    plc = read(tmp_path, text)
    plc.set_canvas_size(SIDE, SIDE)
    plc.set_placement_grid(CELLS, CELLS)
    plc.set_routes_per_micron(1.0, 1.0)
    plc.set_macro_routing_allocation(0.5, 0.25)
    # From 5 to 25: half of cells 0 and 2, all of cell 1, in both directions.
    across = np.zeros((CELLS, CELLS))
    across[:3, :2] = np.array([[0.25], [0.5], [0.25]])
    up = np.zeros((CELLS, CELLS))
    up[:2, :3] = np.array([[0.125, 0.25, 0.125]])
    assert (square(plc.get_horizontal_routing_congestion()) == across).all()
    assert (square(plc.get_vertical_routing_congestion()) == up).all()
    worst = np.sort(np.concatenate([across.ravel(), up.ravel()]))[::-1][: int(0.05 * 72)]
    assert plc.get_congestion_cost() == worst.mean()


def test_wirelength_and_density_by_hand(tmp_path):
    """Half perimeters with turned pins, weights and centres; area shared with cells, blockages, nodes outside."""
    text = (
        port("p", 0, 0, "A/i", weight=3.0)
        + macro("A", 20, 10, 30, 20)
        + pin("A/i", "A", 4, -3)
        + pin("A/o", "A", -10, 5, "Grp_1/i", "none such")
        + macro("Grp_1", 10, 10, 55, 55)
        + pin("Grp_1/i", "Grp_1", 0, 0)
    )
    plc = read(tmp_path, text)
    plc.set_canvas_size(SIDE, SIDE)
    plc.set_placement_grid(CELLS, CELLS)
    assert plc.get_wirelength() == 3 * (34 + 17) + (35 + 30)
    assert plc.get_cost() == (3 * (34 + 17) + 65) / (120 * 4)
    plc.update_macro_orientation_by_name("A", "FS")
    assert plc.get_wirelength() == 3 * (34 + 23) + (35 + 40)
    density = square(plc.get_grid_cells_density())
    assert density[1:3, 2:4].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert density[5, 5] == 1.0
    assert density.sum() == 3.0
    plc.create_blockage(0, 0, 15, 10, 0.5)
    assert square(plc.get_grid_cells_density())[0, :2].tolist() == [0.5, 0.25]
    assert plc.get_density_cost() == 0.5 * (1.0 + 0.5 + 0.5) / 3
    plc.set_canvas_boundary_check(False)
    plc.update_node_coords_by_name("Grp_1", 60, 55)
    assert square(plc.get_grid_cells_density())[5, 5] == 0.5
    plc.add_fake_net(2.0, [1, 4])
    assert plc.get_fake_net_cost() == (30 + 35) / 120


def test_running_costs_are_those_from_scratch(tmp_path):
    """Costs that annealing updates over thousands of moves equal an evaluation's to 1e-9."""
    netlist, initial = generate_block(tmp_path, BlockSpec(hard_macros=9, soft_macros=12))
    plc = open_placement(netlist, initial)
    plc.set_congestion_smooth_range(2)
    found = anneal(plc, moves=3000, first_temperature=0.05, seed=3)
    wirelength, density, congestion = plc.get_costs()
    assert found.judged == 3000
    assert 0 < found.accepted < 3000
    assert found.cost == pytest.approx(wirelength + density + 0.5 * congestion, rel=1e-9, abs=0)


@needs_ariane
def test_published_costs_of_ariane133():
    """The netlist's own coordinates and initial.plc give the published values, to 1e-9 relative."""
    plc = PlacementCost(ariane("netlist.pb.txt.gz"))
    plc.set_canvas_size(1433.405978506462, 1433.405978506462)
    plc.set_placement_grid(24, 21)
    wanted = (3219216.089926243, 0.04972216808719774, 0.6067336535076749, 0.7127769543883791)
    assert tuple(plc.evaluate().values()) == pytest.approx(wanted, rel=1e-9, abs=0)
    assert repr(plc.get_area()) == "1447227.522542122"
    plc = open_placement(ariane("netlist.pb.txt.gz"), ariane("initial.plc"))
    wanted = (3219213.9981283005, 0.049722135032914616, 0.60673484721291, 0.71277694890411)
    assert tuple(plc.evaluate().values()) == pytest.approx(wanted, rel=1e-9, abs=0)


@needs_ariane
def test_ariane133_cell_by_cell():
    """Each cell's density and congestion is the digit that the placement's header shows for it."""
    plc = open_placement(ariane("netlist.pb.txt.gz"), ariane("initial.plc"))
    text = ariane("initial.plc").read_text()
    for title, values in (
        ("Overall Placement Density", plc.get_grid_cells_density()),
        ("Horizontal Routing Congestion", plc.get_horizontal_routing_congestion()),
        ("Vertical Routing Congestion", plc.get_vertical_routing_congestion()),
    ):
        lines = text.split(f"# {title}:")[1].splitlines()[4:25]
        shown = [line.split("|")[1:25] for line in reversed(lines)]
        ours = [[" 123456789#!"[min(11, int(10 * value))] for value in row] for row in np.reshape(values, (21, 24))]
        assert ours == shown, title


def test_evaluator_for_episodes_has_the_published_settings(tmp_path):
    """Squares, spacing, threshold, routes, smoothing and a congestion grid of its own; ports fixed, macros by name."""
    netlist, initial = generate_block(tmp_path)
    plc = create_placement_cost(netlist, initial, fixed_macros="M[01]")
    assert plc.get_canvas_width_height() == (400.0, 400.0)
    assert plc.get_congestion_grid_num_columns_rows() == (int(400 * (70.33 + 74.51) / 2000),) * 2
    assert plc.get_macro_macro_spacing() == (0.1, 0.1)
    assert (plc.get_congestion_smooth_range(), plc.get_overlap_threshold()) == (5.0, 0.004)
    fixed = {plc.get_node_name(i) for i in range(plc.get_node_count()) if plc.is_node_fixed(i)}
    assert fixed == {"M0", "M1"} | {f"P{i}" for i in range(24)}
    soft = [m for m in plc.get_macro_indices() if plc.is_node_soft_macro(m)]
    assert all(len(set(plc.get_node_width_height(m))) == 1 for m in soft)
