"""A placement becomes an episode that ends with its hard macros where they were, or says which are elsewhere."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from penstock import native
from penstock.native.floorplan import (
    GUIDED,
    BlockSpec,
    PlacementCost,
    anneal,
    cells_of,
    create_placement_cost,
    generate_block,
    load_environment,
    placing_order,
)

from ...support.environments.blocks import macro, read


def annealed(folder):
    plc = create_placement_cost(*generate_block(folder, BlockSpec(hard_macros=9, soft_macros=20, seed=3)))
    anneal(plc, moves=5_000, proposals=GUIDED, seed=1)
    return plc


def small(tmp_path, *macros):
    """Macros of 20 um on a canvas of 60 um with cells of 10 um."""
    plc = read(tmp_path, "".join(macros))
    plc.set_canvas_size(60, 60)
    plc.set_placement_grid(6, 6)
    return plc


def test_an_episode_ends_with_the_very_placement(tmp_path):
    """After annealing, with orientations and soft macros of its own, positions of hard macros are equal to 1e-9 um."""
    plc = annealed(tmp_path)
    found = cells_of(plc)
    assert (found.moved, found.most_moved_um, len(found.cells)) == ((), 0.0, 9)
    with closing(native.make(load_environment(plc).environment_ids[0], 1)) as pool:
        observation, _ = pool.reset(seed=0)
        for cell in found.cells:
            assert observation[0, cell] == 1
            observation, reward, terminated, *_ = pool.step(np.array([cell]))
    assert terminated[0]
    again = PlacementCost(plc)
    again.unplace_all_nodes()
    for number, cell in zip(placing_order(plc), found.cells, strict=True):
        again.place_node(number, cell)
        assert again.get_node_location(number) == pytest.approx(plc.get_node_location(number), abs=1e-9)
        again.update_macro_orientation(number, "N")
    again.place_soft_macros()
    assert reward[0] == pytest.approx(-np.dot((1.0, 1.0, 0.5), again.get_costs()), rel=1e-9)


def test_the_placement_stays_as_it_is(tmp_path):
    """The evaluator that was asked has the positions and costs that it had."""
    plc = annealed(tmp_path)
    before = plc.get_costs()
    cells_of(plc)
    assert plc.get_costs() == before


def test_a_macro_off_the_cells_goes_to_the_nearest(tmp_path):
    """It is named with its way; of equally near cells the first is taken."""
    plc = small(tmp_path, macro("A", 20, 20, 27, 25), macro("B", 10, 10, 50, 45))
    found = cells_of(plc)
    assert found.cells == (2 * 6 + 2, 4 * 6 + 4)
    assert found.moved == (0, 1)
    assert found.most_moved_um == pytest.approx(5)


def test_a_macro_on_a_forbidden_cell_goes_to_the_nearest_allowed(tmp_path):
    """The larger macro keeps its place, and the smaller one that overlaps it gives way."""
    plc = small(tmp_path, macro("small", 10, 10, 35, 25), macro("large", 20, 20, 25, 25))
    found = cells_of(plc)
    assert found.cells == (2 * 6 + 2, 2 * 6 + 4)
    assert (found.moved, found.most_moved_um) == ((0,), pytest.approx(10))


def test_what_is_no_episode_is_refused(tmp_path):
    """A macro without a place, and one that finds no cell."""
    plc = small(tmp_path, macro("A", 40, 40, 25, 25), macro("B", 30, 30, 45, 45))
    with pytest.raises(ValueError, match=r"'B' finds no allowed cell after 1 others, .*legalise it first"):
        cells_of(plc)
    plc.unplace_node(0)
    with pytest.raises(ValueError, match="'A' is not placed"):
        cells_of(plc)
