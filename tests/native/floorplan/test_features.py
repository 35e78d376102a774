"""The published observation of a placement, by hand on a small block."""

import numpy as np
import pytest

from penstock.native.floorplan import Observer

from ...support.environments.blocks import macro, node, pin, port, read


@pytest.fixture
def plc(tmp_path):
    """Two hard macros of one size, a soft one and a port at the top right, on 4 x 4 cells of 10 um."""
    text = (
        port("p", 40, 40, "A/i", weight=3.0)
        + macro("A", 10, 10, 15, 15)
        + pin("A/i", "A", 0, 0)
        + pin("A/o", "A", 0, 0, "Grp_1/i")
        + macro("Grp_1", 4, 4, 8, 30)
        + pin("Grp_1/i", "Grp_1", 0, 0)
        + node("B", type="MACRO", width=10.0, height=10.0)
    )
    plc = read(tmp_path, text)
    plc.set_canvas_size(40, 40)
    plc.set_placement_grid(4, 4)
    return plc


def test_fields_are_those_of_the_specification(plc):
    """Graph, sizes, types, locations, flags and mask; lengths over the half perimeter; padded around the middle."""
    plc.set_routes_per_micron(2.0, 3.0)
    seen = Observer(plc, most_nodes=6, most_edges=5, most_grid=8).observe(6)
    assert all(field.dtype in {np.dtype("float32"), np.dtype("int32")} for field in seen.values())
    assert seen["sparse_adj_i"].tolist() == [0, 0, 0, 0, 0]
    assert seen["sparse_adj_j"].tolist() == [1, 3, 0, 0, 0]
    assert seen["sparse_adj_weight"][:2] == pytest.approx([0.5, 1.5], rel=1e-5)
    assert seen["edge_counts"].tolist() == [2, 1, 0, 1, 0, 0]
    assert seen["node_types"].tolist() == [1, 2, 1, 3, 0, 0]
    assert seen["macros_w"].tolist() == [0.125, 0, 0.125, 0, 0, 0]
    assert seen["locations_x"].tolist() == pytest.approx([15 / 80, 0.1, 0.25, 0.5, 0, 0])
    assert seen["is_node_placed"].tolist() == [1, 0, 0, 1, 0, 0]
    assert seen["current_node"].tolist() == [2]
    assert seen["normalized_num_edges"] == pytest.approx([0.8])
    assert seen["total_vertical_routes_k"] == pytest.approx([0.12])
    mask = seen["mask"].reshape(8, 8)
    assert mask.sum() == mask[2:6, 2:6].sum() == 13  # A is in the way, and two cells hold some of the soft macro
    assert mask[2:6, 2:6].ravel().tolist() == plc.get_node_mask(6)


def test_heatmaps_and_the_end(plc):
    """Heatmaps show packing of equal macros and the pull of fake nets; all zeros when no macro is left to place."""
    observer = Observer(plc, padded=False)
    packing = observer.observe(6)["packing_heatmap"].reshape(4, 4)
    assert packing[1].tolist() == pytest.approx([1, 0, 1, 0.5], abs=1e-5)
    assert packing[3, 3] == pytest.approx(1 / 4, abs=1e-5)
    assert not observer.observe(6)["fake_net_heatmap"].any()
    plc.add_fake_net(2.0, [6, 1])
    pull = observer.observe(6)["fake_net_heatmap"].reshape(4, 4)
    far = np.hypot(2, 2)
    assert pull[1, 1] == pytest.approx(1, abs=1e-5)
    assert pull[1, 2] == pytest.approx(1 - 1 / far, abs=1e-5)
    assert pull[3, 3] == 0
    end = observer.observe(None)
    assert end["mask"].shape == (16,)
    assert not any(end[field].any() for field in ("mask", "packing_heatmap", "fake_net_heatmap", "current_node"))
