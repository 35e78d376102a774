"""Netlists for tests, node by node, and the folders of real ones."""

import os
from pathlib import Path

import pytest

from penstock.native.floorplan import PlacementCost

DATA = os.environ.get("PENSTOCK_TEST_DATA")
needs_data = pytest.mark.skipif(
    DATA is None, reason="PENSTOCK_TEST_DATA is not set: it names the folder with real netlists, flat ones among them"
)
ARIANE = os.environ.get("PENSTOCK_ARIANE133")
needs_ariane = pytest.mark.skipif(
    ARIANE is None, reason="PENSTOCK_ARIANE133 is not set: it names the folder with Ariane133's netlist and placement"
)


def ariane(name: str) -> Path:
    return Path(str(ARIANE)) / name


def node(name: str, *sinks: str, **attributes: str | float) -> str:
    inputs = "".join(f'  input: "{sink}"\n' for sink in sinks)
    held = "".join(
        f'  attr {{ key: "{key}" value {{ ' + (f'placeholder: "{v}"' if isinstance(v, str) else f"f: {v!r}") + " } }\n"
        for key, v in attributes.items()
    )
    return f'node {{\n  name: "{name}"\n{inputs}{held}}}\n'


def port(name: str, x: float, y: float, *sinks: str, weight: float = 1.0) -> str:
    return node(name, *sinks, type="port", x=x, y=y, weight=weight)


def macro(name: str, width: float, height: float, x: float, y: float) -> str:
    return node(name, type="MACRO", width=width, height=height, x=x, y=y)


def pin(name: str, of: str, x: float, y: float, *sinks: str, weight: float = 1.0) -> str:
    return node(name, *sinks, type="macro_pin", macro_name=of, x_offset=x, y_offset=y, weight=weight)


def cell(name: str, area: float, x: float, y: float, *sinks: str, weight: float = 1.0) -> str:
    return node(name, *sinks, type="stdcell", width=area, height=1.0, x=x, y=y, weight=weight)


def read(folder: Path, text: str, name: str = "netlist.pb.txt") -> PlacementCost:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return PlacementCost(path)
