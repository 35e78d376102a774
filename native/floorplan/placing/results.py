"""Writes what a search found: the placement, as .plc and DEF, pictures, the curve and the costs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock.native.floorplan.drawing import draw
from penstock.native.floorplan.placement_cost import PlacementCost
from penstock.native.floorplan.placing.def_file import def_text
from penstock.native.floorplan.placing.starting import legality_problems, rounding_um, unplaced_ports

if TYPE_CHECKING:
    from penstock.native.floorplan.placing.state import OutFolder, State

BEST = "best.plc"


@dataclass(frozen=True, slots=True)
class PlaceResult:
    """The result of a search.

    Costs are those of the written .plc, read again, or without a folder those of the exact positions. They differ in
    the sixth digit, since a .plc has no more.
    """

    cost: float
    """Weighted."""
    wirelength_cost: float
    density_cost: float
    congestion_cost: float
    wirelength: float
    """In um."""
    weights: tuple[float, float, float]
    start_cost: float
    """Weighted, of the legal placement that the search started from."""
    legalised: bool
    """True if the given placement had to be made legal first."""
    legal: bool
    problems: tuple[str, ...]
    """The first reasons why it is not legal; fixed macros are not judged against each other."""
    unplaced_ports: int
    moves: int
    """Moves of each chain."""
    judged: int
    """Legal moves of all chains."""
    seconds: float
    seed: int
    threads: int
    segments: int
    placement: str | None
    """Path of the .plc file; the others are next to it."""


def write_best(layout: PlacementCost, state: State, folder: OutFolder) -> str:
    """Write the best placement so far, and return its path."""
    comment = (
        f"Placed: {state.done} of {state.segments} segments, {state.moves} moves of each of {state.threads} chains, "
        f"seed {state.identity['seed']}."
    )
    return str(folder.write(BEST, lambda path: layout.save_placement(path, comment)))


def write_results(
    plc: PlacementCost, given: PlacementCost, state: State, folder: OutFolder | None, *, legalised: bool
) -> PlaceResult:
    """Evaluate the best placement and, where there is a folder, write everything that is kept of it.

    Args:
        plc: Has the best placement.
        given: Has the one that was given, for the picture of before.
        state: Of the finished search.
        folder: For the files, or None.
        legalised: See PlaceResult.
    """
    written, allowed_um, path = plc, 0.0, None
    if folder is not None:
        path = write_best(plc, state, folder)
        written, allowed_um = PlacementCost(plc), rounding_um(plc)
        written.restore_placement(path)
    found = written.evaluate()
    weights = state.identity["weights"]
    parts = (found["wirelength_cost"], found["density_cost"], found["congestion_cost"])
    problems = legality_problems(plc) or legality_problems(written, allowed_um)
    result = PlaceResult(
        cost=sum(weight * part for weight, part in zip(weights, parts, strict=True)),
        wirelength_cost=parts[0],
        density_cost=parts[1],
        congestion_cost=parts[2],
        wirelength=found["wirelength"],
        weights=tuple(weights),
        start_cost=state.curve[0]["cost"],
        legalised=legalised,
        legal=not problems,
        problems=tuple(problems),
        unplaced_ports=unplaced_ports(plc),
        moves=state.moves,
        judged=state.judged,
        seconds=state.seconds,
        seed=state.identity["seed"],
        threads=state.threads,
        segments=state.segments,
        placement=path,
    )
    if folder is not None:
        folder.write("best.def", lambda target: target.write_text(def_text(plc), encoding="utf-8"))
        folder.write("before.png", lambda target: draw(given, target))
        folder.write("after.png", lambda target: draw(plc, target))
        folder.write("curve.json", lambda target: target.write_text(json.dumps(state.curve) + "\n"))
        folder.write("result.json", lambda target: target.write_text(json.dumps(asdict(result), indent=2) + "\n"))
    return result
