"""Makes the generated blocks that `placing_pretraining.py` pretrains on, each with two annealed placements."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np

from penstock.native.floorplan import (
    GUIDED,
    PUBLISHED,
    BlockSpec,
    PlacementCost,
    anneal,
    create_placement_cost,
    generate_block,
)

if TYPE_CHECKING:
    from pathlib import Path

FIRST_SEED = 2000  # of generated blocks; `placing_blocks.py` and `floorplan_proposals.py` have seeds below
GRID = (24, 21)  # of Ariane133, since the blocks of a run have one grid
PROPOSALS = {"published": PUBLISHED, "guided": GUIDED}
"""The moves of annealings, by the names of their placements."""
LEGALISED = "legal"


def pretraining_block(folder: Path, number: int, moves: int) -> Path:
    """Return the folder of a block, which is made unless it is there: netlist, legalised and annealed placements."""
    made, part = folder / f"{number:04}", folder / f"{number:04}.part"
    if made.exists():
        return made
    plc = _legal(part, FIRST_SEED + number)
    plc.save_placement(part / f"{LEGALISED}.plc")
    for name, proposals in PROPOSALS.items():
        annealed = PlacementCost(plc)
        anneal(annealed, moves=moves, proposals=proposals, seed=number)
        annealed.save_placement(part / f"{name}.plc")
    part.rename(made)
    return made


def _legal(folder: Path, seed: int) -> PlacementCost:
    rng = np.random.default_rng(seed)
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        spec = BlockSpec(
            hard_macros=int(np.exp(rng.uniform(np.log(20), np.log(130)))),
            soft_macros=int(np.exp(rng.uniform(np.log(60), np.log(400)))),
            ports=int(rng.integers(30, 400)),
            columns=GRID[0],
            rows=GRID[1],
            nets_per_macro=int(rng.integers(5, 15)),
            hard_share=float(rng.uniform(0.25, 0.45)),
            soft_share=float(rng.uniform(0.1, 0.25)),
            side=float(rng.uniform(400, 2000)),
            seed=seed,
        )
        try:
            plc = create_placement_cost(*generate_block(folder, spec))
        except ValueError:
            continue  # no legal placement of these macros on this grid: others are drawn
        if plc.legalize(only_hard=True):
            plc.place_soft_macros()
            return plc
