"""Proposals: what they promise of wirelength is what it costs, and soft macros are annealed by exact costs."""

import numpy as np
import pytest

from penstock.native.floorplan import (
    GUIDED,
    GUIDED_FULL,
    UNIFORM,
    UNIFORM_FULL,
    BlockSpec,
    PlacementCost,
    Proposals,
    anneal,
    create_placement_cost,
    generate_block,
    place,
    proposals_for,
)


@pytest.fixture
def plc(tmp_path):
    plc = create_placement_cost(*generate_block(tmp_path, BlockSpec(hard_macros=9, soft_macros=20, hard_share=0.2)))
    assert plc.legalize(only_hard=True)
    plc.place_soft_macros()
    return plc


def weighted(plc: PlacementCost) -> float:
    return float(np.dot((1.0, 1.0, 0.5), plc.get_costs()))


def test_a_wire_map_says_the_wirelength_of_every_cell(plc):
    columns, rows = plc.get_grid_num_columns_rows()
    width, height = plc.get_canvas_width_height()
    for macro in plc.get_macro_indices()[::4]:
        across, up = (np.array(part) for part in plc._wire_map(macro))
        assert (across.shape, up.shape) == ((columns,), (rows,))
        before, at = plc.get_wirelength(), plc.get_node_location(macro)
        for column, row in [(0, 0), (columns - 1, rows // 2), (columns // 3, rows - 1)]:
            centre = (column + 0.5) * width / columns, (row + 0.5) * height / rows
            plc.update_node_coords(macro, *centre)
            assert plc.get_wirelength() - before == pytest.approx(across[column] + up[row], rel=1e-9, abs=1e-6)
        plc.update_node_coords(macro, *at)


@pytest.mark.parametrize("proposals", [UNIFORM, GUIDED, Proposals(guided_move=1, guided_swap=1, hard_wire=1)])
def test_the_cost_is_that_of_the_layout_and_below_the_start(plc, proposals):
    start, softs = weighted(plc), [m for m in plc.get_macro_indices() if plc.is_node_soft_macro(m)]
    before = plc.get_node_locations(softs)
    found = anneal(plc, moves=3000, seed=3, proposals=proposals, first_temperature=0.01)
    assert found.cost == pytest.approx(weighted(plc), rel=1e-9)
    assert found.cost < start
    assert found.accepted > 30
    assert proposals.move_soft <= (plc.get_node_locations(softs) != before)


@pytest.mark.parametrize("proposals", [UNIFORM, GUIDED])
def test_the_same_seed_gives_the_same_layout_and_another_seed_another(plc, proposals):
    def layout(seed: int) -> str:
        one = PlacementCost(plc)
        anneal(one, moves=2000, seed=seed, proposals=proposals)
        return one._plc_lines()

    assert layout(1) == layout(1) != layout(2)


def test_fixed_macros_stay_and_all_stay_legal(plc):
    macros = plc.get_macro_indices()
    fixed = [macros[0], next(m for m in macros if plc.is_node_soft_macro(m))]
    for macro in fixed:
        plc.fix_node_coord(macro)
    before = plc.get_node_locations(fixed)
    anneal(plc, moves=3000, seed=1, proposals=GUIDED)
    assert plc.get_node_locations(fixed) == before
    hard = [m for m in macros if not plc.is_node_soft_macro(m)]
    at = np.array(plc.get_node_locations(macros))
    half = np.array([plc.get_node_width_height(m) for m in macros]) / 2
    canvas = np.array(plc.get_canvas_width_height())
    assert (at - half >= -1e-5).all()
    assert (at + half <= canvas + 1e-5).all()
    for i in hard:
        for j in hard:
            if i < j:
                (xi, yi), (xj, yj) = plc.get_node_locations([i, j])
                (wi, hi), (wj, hj) = plc.get_node_width_height(i), plc.get_node_width_height(j)
                assert abs(xi - xj) >= (wi + wj) / 2 - 0.01 or abs(yi - yj) >= (hi + hj) / 2 - 0.01


def test_guided_proposals_are_better_than_uniform_ones_with_as_many_moves(plc):
    def mean(proposals: Proposals) -> float:
        layouts = [PlacementCost(plc) for _ in range(4)]
        return float(
            np.mean([anneal(one, moves=4000, seed=s, proposals=proposals).cost for s, one in enumerate(layouts)])
        )

    assert mean(GUIDED) < mean(UNIFORM)


def test_the_share_of_soft_macros_chooses_among_those_that_were_learned(tmp_path):
    """Up to a quarter of the area the first set, beyond it the other, which `place` takes too."""
    blocks = {}
    for share in (0.2, 0.3, 0.75):
        spec = BlockSpec(hard_macros=5, soft_macros=20, hard_share=0.2, soft_share=share)
        blocks[share] = create_placement_cost(*generate_block(tmp_path / str(share), spec))
    assert proposals_for(blocks[0.2]) is GUIDED
    assert proposals_for(blocks[0.3]) is proposals_for(blocks[0.75]) is GUIDED_FULL
    assert proposals_for(blocks[0.2], "uniform") is UNIFORM
    assert proposals_for(blocks[0.3], "uniform") is UNIFORM_FULL
    assert proposals_for(blocks[0.3], "published") is proposals_for(blocks[0.2], "published")

    with pytest.raises(ValueError, match="kind is 'random', expected one of published, uniform, guided"):
        proposals_for(blocks[0.3], "random")

    costs = {}
    for name, proposals in {"as it is": None, "full": GUIDED_FULL, "other": GUIDED}.items():
        plc = PlacementCost(blocks[0.75])
        costs[name] = place(plc, moves=2000, segments=2, threads=1, seed=1, proposals=proposals).cost
    assert costs["as it is"] == costs["full"] != costs["other"]


def test_without_what_a_kind_moves_it_is_not_proposed(tmp_path):
    plc = create_placement_cost(*generate_block(tmp_path, BlockSpec(hard_macros=4, soft_macros=0)))
    assert plc.legalize(only_hard=True)
    assert anneal(plc, moves=200, proposals=GUIDED).judged == 200
    assert anneal(plc, moves=200, proposals=Proposals(soft_shift=1)).judged == 0


@pytest.mark.parametrize("wrong", [{}, {"swap": -1.0}, {"swap": 1.0, "soft_wire": float("nan")}, {"soft_wire": 1.0}])
def test_numbers_that_are_no_chances_are_refused(wrong):
    with pytest.raises(ValueError, match="expected numbers of at least 0, and a chance above 0"):
        Proposals(**wrong)
