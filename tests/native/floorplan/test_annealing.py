"""Annealing: its decisions are those of full costs, whatever it spares itself."""

import re

import numpy as np
import pytest

from penstock.native.floorplan import BlockSpec, PlacementCost, anneal, create_placement_cost, generate_block

TURNS = ("N", "FN", "S", "FS", "E", "FE", "W", "FW")


class Reference:
    """The same search, slowly: every legal move is made and evaluated in full."""

    def __init__(self, plc: PlacementCost, seed: int) -> None:
        self.plc, self.rng = plc, np.random.default_rng(seed)
        self.hard = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m)]
        self.width, self.height = plc.get_canvas_width_height()
        self.columns, self.rows = plc.get_grid_num_columns_rows()

    def cost(self) -> float:
        return float(np.dot((1.0, 1.0, 0.5), self.plc.get_costs()))

    def centre(self, cell: int) -> tuple[float, float]:
        wide, high = self.width / self.columns, self.height / self.rows
        return (cell % self.columns) * wide + wide / 2, (cell // self.columns) * high + high / 2

    def chosen(self, count: int) -> list[int]:
        macros: list[int] = []
        while len(macros) < count:
            macro = self.hard[int(self.rng.integers(len(self.hard)))]
            if macro not in macros:
                macros.append(macro)
        return macros

    def proposed(self) -> list[tuple[int, tuple[float, float], str]]:
        at, turn = self.plc.get_node_location, self.plc.get_macro_orientation
        kind = int(np.searchsorted(np.cumsum([0.24, 0.24, 0.04, 0.24, 0.24]), self.rng.random(), side="right"))
        if kind in (0, 4):
            macros = self.chosen(2 if kind == 0 else 4)
            places = macros[::-1] if kind == 0 else list(macros)
            for i in range(len(places), 1, -1) if kind == 4 else ():
                j = int(self.rng.integers(i))
                places[i - 1], places[j] = places[j], places[i - 1]
            return [(m, at(p), turn(m)) for m, p in zip(macros, places, strict=True) if m != p]
        (macro,) = self.chosen(1)
        if kind == 2:
            turned = TURNS.index(turn(macro)) ^ (1 if self.rng.random() < 0.5 else 3)
            return [(macro, at(macro), TURNS[turned])]
        if kind == 3:
            return [(macro, self.centre(int(self.rng.integers(self.columns * self.rows))), turn(macro))]
        x, y = at(macro)
        column, row = int(x / (self.width / self.columns)), int(y / (self.height / self.rows))
        across, up = ((1, 0), (-1, 0), (0, 1), (0, -1))[int(self.rng.integers(4))]
        column, row = column + across, row + up
        inside = 0 <= column < self.columns and 0 <= row < self.rows
        return [(macro, self.centre(row * self.columns + column), turn(macro))] if inside else []

    def put(self, changes: list[tuple[int, tuple[float, float], str]]) -> None:
        for macro, centre, turn in changes:
            self.plc.update_node_coords(macro, *centre)
            self.plc.update_macro_orientation(macro, turn)

    def legal(self, macros: list[int]) -> bool:
        at = np.array([self.plc.get_node_location(m) for m in self.hard])
        half = np.array([self.plc.get_node_width_height(m) for m in self.hard]) / 2
        for macro in macros:
            i = self.hard.index(macro)
            low, high = at[i] - half[i], at[i] + half[i]
            if (low < -1e-5).any() or (high > np.array([self.width, self.height]) + 1e-5).any():
                return False
            shared = np.minimum(high, at + half) - np.maximum(low, at - half)
            if (shared + self.plc.get_macro_macro_spacing() > self.plc.get_overlap_threshold()).all(axis=1).sum() > 1:
                return False
        return True

    def anneal(self, moves: int, first: float, last: float) -> int:
        cost = best = self.cost()
        kept = PlacementCost(self.plc)
        judged = accepted = 0
        while judged < moves:
            changes = self.proposed()
            before = [(m, self.plc.get_node_location(m), self.plc.get_macro_orientation(m)) for m, *_ in changes]
            self.put(changes)
            if not changes or not self.legal([m for m, *_ in changes]):
                self.put(before)
                continue
            temperature = first * (last / first) ** (judged / moves)
            judged += 1
            most = cost - temperature * np.log(self.rng.random())
            found = self.cost()
            if found > most:
                self.put(before)
                continue
            accepted, cost = accepted + 1, found
            if cost < best:
                best, kept = cost, PlacementCost(self.plc)
        self.plc = PlacementCost(kept)
        self.plc.place_soft_macros()
        if self.cost() > best:
            self.plc = kept
        return accepted


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("smooth_range", [0.0, 2.0])
def test_decisions_are_those_of_full_costs(tmp_path, weight, smooth_range):
    """Move by move as a search that evaluates all from scratch, with whole and with broken weights of nets."""
    netlist, initial = generate_block(tmp_path, BlockSpec(hard_macros=9, soft_macros=12, hard_share=0.2))
    text = re.sub(
        r'(key: "weight"\s+value \{\s+f: )(\d+)', lambda m: f"{m[1]}{weight * int(m[2]):.6g}", netlist.read_text()
    )
    netlist.write_text(text)
    plc = create_placement_cost(netlist, initial, smooth_range=smooth_range)
    assert plc.legalize(only_hard=True)
    plc.place_soft_macros()
    slow = Reference(PlacementCost(plc), seed=5)
    found = anneal(plc, moves=400, first_temperature=0.02, last_temperature=1e-4, soft_every=0, seed=5)
    assert found.accepted == slow.anneal(400, 0.02, 1e-4)
    assert 20 < found.accepted < 380
    assert plc._plc_lines() == slow.plc._plc_lines()
    assert found.cost == pytest.approx(slow.cost(), rel=1e-12)
