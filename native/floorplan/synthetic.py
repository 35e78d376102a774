"""Generates small synthetic blocks for tests, examples and tuning, without a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.native.floorplan.files import write_text
from penstock.native.floorplan.placement_cost import PlacementCost

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """Parameters of a synthetic block. The same spec gives the same bytes."""

    hard_macros: int = 12
    soft_macros: int = 40
    ports: int = 24
    columns: int = 16
    rows: int = 16
    nets_per_macro: int = 6
    hard_share: float = 0.3
    """Share of the canvas's area."""
    soft_share: float = 0.3
    side: float = 400.0
    """Side of the canvas, in um."""
    seed: int = 0

    def __post_init__(self) -> None:
        counts = (self.hard_macros, self.soft_macros, self.ports, self.nets_per_macro)
        if min(counts) < 0 or self.hard_macros + self.soft_macros < 1 or min(self.columns, self.rows) < 1:
            raise ValueError(f"{self}: counts must be at least 0, with one macro, one column and one row at least")
        if min(self.hard_share, self.soft_share) < 0 or self.hard_share + self.soft_share > 1:
            raise ValueError(f"{self}: hard_share and soft_share must be at least 0 and at most 1 together")
        if not self.side > 0:
            raise ValueError(f"side is {self.side}, expected a length above 0 um")


def generate_block(folder: str | os.PathLike[str], spec: BlockSpec | None = None) -> tuple[Path, Path]:
    """Write a block's `netlist.pb.txt` and a legal `initial.plc` into a folder, which is created if missing.

    Hard macros come in four shapes and are tied more to near numbers than to far ones, so that there is something to be
    found; ports are placed around the edge.

    Raises:
        ValueError: The hard macros find no legal positions: a smaller `hard_share` or a finer grid helps.
    """
    spec = spec or BlockSpec()
    netlist, initial = Path(folder) / "netlist.pb.txt", Path(folder) / "initial.plc"
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_text(netlist, netlist_text(spec))
    plc = PlacementCost(netlist)
    plc.apply_comments(plc.netlist_comments())
    if not plc.legalize(only_hard=True):
        raise ValueError(f"{spec}: no legal placement was found; take a smaller hard_share or more columns and rows")
    plc.place_soft_macros()
    plc.save_placement(initial, "Legalised, soft macros placed by forces.")
    return netlist, initial


def netlist_text(spec: BlockSpec) -> str:
    """Return the block's netlist; the comments hold canvas and grid."""
    rng = np.random.Generator(np.random.PCG64(spec.seed))
    macros = [f"M{i}" for i in range(spec.hard_macros)] + [f"Grp_{i}" for i in range(spec.soft_macros)]
    sizes = np.concatenate([_hard_sizes(spec, rng), _soft_sizes(spec, rng)])
    centres = rng.uniform(0.0, spec.side, (len(macros), 2))
    nodes: list[str] = []
    drivers = [f"P{i}" for i in range(spec.ports)]
    sinks: dict[str, list[str]] = {name: [] for name in drivers}
    pins: dict[str, tuple[int, float, float]] = {}
    for m, name in enumerate(macros):
        for k in range(spec.nets_per_macro):
            pin = f"{name}/o{k}"
            pins[pin] = (m, *(rng.uniform(-0.5, 0.5, 2) * sizes[m]).tolist())
            sinks[pin] = []
    for driver, driven in sinks.items():
        home = pins[driver][0] if driver in pins else int(rng.integers(len(macros)))
        for _ in range(1 + int(rng.integers(3))):
            far = int(rng.normal(0.0, 0.08 * len(macros) + 1.0))
            m = (home + far) % len(macros)
            if rng.random() < 0.05 and spec.ports:
                driven.append(f"P{int(rng.integers(spec.ports))}")
                continue
            pin = f"{macros[m]}/i{len(pins)}"
            pins[pin] = (m, *(rng.uniform(-0.5, 0.5, 2) * sizes[m]).tolist())
            driven.append(pin)
    for i in range(spec.ports):
        side, x, y = _edge(i / spec.ports, spec.side)
        nodes.append(_node(f"P{i}", sinks[f"P{i}"], type="port", side=side, x=x, y=y))
    for m, name in enumerate(macros):
        width, height = sizes[m].tolist()
        x, y = centres[m].tolist()
        nodes.append(_node(name, [], type="MACRO", width=width, height=height, x=x, y=y, orientation="N"))
    for pin, (m, x, y) in pins.items():
        driven = sinks.get(pin, [])
        weight = {"weight": float(1 + int(rng.integers(3)))} if driven else {}
        nodes.append(_node(pin, driven, type="macro_pin", macro_name=macros[m], x_offset=x, y_offset=y, **weight))
    head = (
        f"# A made-up block, seed {spec.seed}\n# Block : synthetic-{spec.seed}\n"
        f"# Columns : {spec.columns}  Rows : {spec.rows}\n# Width : {spec.side!r}  Height : {spec.side!r}\n"
    )
    return head + "".join(nodes)


def _hard_sizes(spec: BlockSpec, rng: np.random.Generator) -> NDArray[np.float64]:
    shapes = np.array([[1.0, 1.0], [1.4, 0.8], [0.7, 1.2], [0.6, 0.6]])[rng.integers(4, size=spec.hard_macros)]
    return _scaled(shapes, spec.hard_share * spec.side**2)


def _soft_sizes(spec: BlockSpec, rng: np.random.Generator) -> NDArray[np.float64]:
    return _scaled(np.repeat(rng.uniform(0.5, 1.5, (spec.soft_macros, 1)), 2, axis=1), spec.soft_share * spec.side**2)


def _scaled(shapes: NDArray[np.float64], area: float) -> NDArray[np.float64]:
    return shapes * np.sqrt(area / shapes.prod(axis=1).sum()) if len(shapes) else shapes


def _edge(at: float, side: float) -> tuple[str, float, float]:
    """Return a point of the canvas's edge, from the lower left around."""
    edge, along = divmod(4.0 * at, 1.0)
    along *= side
    corners = (
        ("BOTTOM", along, 0.0),
        ("RIGHT", side, along),
        ("TOP", side - along, side),
        ("LEFT", 0.0, side - along),
    )
    return corners[int(edge)]


def _node(name: str, inputs: list[str], **attributes: str | float) -> str:
    lines = ["node {", f'  name: "{name}"', *(f'  input: "{sink}"' for sink in inputs)]
    for key, value in attributes.items():
        held = f'placeholder: "{value}"' if isinstance(value, str) else f"f: {value:.6g}"
        lines += ["  attr {", f'    key: "{key}"', "    value {", f"      {held}", "    }", "  }"]
    return "\n".join([*lines, "}", ""])
