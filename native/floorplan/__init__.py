"""Macro placement on a chip's canvas: netlists and placements read, costs evaluated, positions searched.

`PlacementCost` is the evaluator; `open_placement` reads a finished placement with the settings in its header, and
`create_placement_cost` makes the evaluator that episodes are played on. `place` is the placer, which is resumed after a
kill. `generate_block` makes a synthetic block. The word here is floorplan, since a placement in `tasks` is that of
fragments on workers.
"""

from penstock.native._floorplan import BlockFileError
from penstock.native.floorplan.bookshelf import import_bookshelf
from penstock.native.floorplan.drawing import draw
from penstock.native.floorplan.environment import load_environment
from penstock.native.floorplan.episode_cells import EpisodeCells, cells_of, placing_order
from penstock.native.floorplan.features import Observer
from penstock.native.floorplan.grouping import group_netlist
from penstock.native.floorplan.placement_cost import (
    PlacementCost,
    create_placement_cost,
    open_placement,
    read_blockages,
)
from penstock.native.floorplan.placing import PlaceProgress, PlaceResult, place
from penstock.native.floorplan.proposals import (
    GUIDED,
    GUIDED_FULL,
    PUBLISHED,
    UNIFORM,
    UNIFORM_FULL,
    Proposals,
    proposals_for,
)
from penstock.native.floorplan.searching import AnnealResult, anneal, check_annealing, descend
from penstock.native.floorplan.synthetic import BlockSpec, generate_block

__all__ = [
    "GUIDED",
    "GUIDED_FULL",
    "PUBLISHED",
    "UNIFORM",
    "UNIFORM_FULL",
    "AnnealResult",
    "BlockFileError",
    "BlockSpec",
    "EpisodeCells",
    "Observer",
    "PlaceProgress",
    "PlaceResult",
    "PlacementCost",
    "Proposals",
    "anneal",
    "cells_of",
    "check_annealing",
    "create_placement_cost",
    "descend",
    "draw",
    "generate_block",
    "group_netlist",
    "import_bookshelf",
    "load_environment",
    "open_placement",
    "place",
    "placing_order",
    "proposals_for",
    "read_blockages",
]
