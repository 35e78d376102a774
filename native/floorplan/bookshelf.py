"""Import of Bookshelf files (.nodes .nets .pl .scl), the format of the academic placement benchmarks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from penstock.native._floorplan import BlockFileError
from penstock.native.floorplan.files import node_text, read_text, write_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

_ORIENTATIONS = ("N", "FN", "S", "FS", "E", "FE", "W", "FW")
_MIRRORED = {"N": (1, 1), "S": (-1, -1), "FN": (-1, 1), "FS": (1, -1)}
"""Factors of a pin's offsets in x and y, by orientations that leave width and height as they are."""
_QUARTER_TURNS = ("E", "W", "FE", "FW")
_KEYWORDS = {"", "UCLA", "NumNodes", "NumTerminals", "NumNets", "NumPins", "NetDegree"}
"""Beginnings of lines that name no node; empty before a comment."""


@dataclass(slots=True)
class _Cell:
    width: float
    height: float
    terminal: bool
    x: float | None = None
    y: float | None = None
    orientation: str = "N"
    fixed: bool = False


@dataclass(slots=True)
class _Design:
    cells: dict[str, _Cell] = field(default_factory=dict)
    nets: list[list[tuple[str, str, float, float]]] = field(default_factory=list)
    """The pins of each net: cell, I, O or B, and the offset from the cell's centre."""
    rows: list[tuple[float, float, float, float]] = field(default_factory=list)
    """x0, y0, x1, y1."""
    row_height: float = 0.0


def import_bookshelf(stem: str | os.PathLike[str], folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write `netlist.pb.txt` and `initial.plc` from `STEM.nodes`, `STEM.nets`, `STEM.pl` and `STEM.scl`.

    The canvas is what the rows cover, moved so that its lower left corner is (0, 0); units are taken as um. A cell no
    higher than a row becomes a soft macro of that one cell (`Grp_` and its name), so that its pins keep their offsets;
    a higher one a hard macro; a terminal a fixed hard macro, or a port where it has no area. Of a net's pins the first
    output drives, or else the first. So wirelength is exactly Bookshelf's; widths, heights and offsets are rounded to
    float32 when the netlist is read, positions are not.

    Args:
        stem: Path of the four files without their endings; one of the files, or an .aux next to them, will do.
        folder: Created if missing.

    Raises:
        BlockFileError: A file is missing, or has unexpected content; the message has file and line.
    """
    given = Path(stem)
    base = given.with_suffix("") if given.suffix in {".aux", ".nodes", ".nets", ".pl", ".scl"} else given
    design = _Design()
    _read_rows(design, f"{base}.scl")
    _read_cells(design, f"{base}.nodes")
    _read_nets(design, f"{base}.nets")
    _read_places(design, f"{base}.pl")
    netlist, plc = _converted(design)
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = Path(folder) / "netlist.pb.txt", Path(folder) / "initial.plc"
    write_text(paths[0], netlist)
    write_text(paths[1], plc)
    return paths


class _Lines:
    """The lines of a file with content, as words; colons separate words, and # begins a comment.

    Not within a line's first word where `is_name` is true of it: a name may have both.
    """

    def __init__(self, path: str, is_name: Callable[[str], bool] = lambda _: False) -> None:
        self.path = path
        self._is_name = is_name
        self.number = 0
        self.line = ""

    def __iter__(self) -> Iterator[list[str]]:
        for number, line in enumerate(read_text(self.path).splitlines(), 1):
            words = self._words(line)
            if words and words[0] != "UCLA":
                self.number, self.line = number, line
                yield words

    def _words(self, line: str) -> list[str]:
        first, *rest = line.split(maxsplit=1) or ["#"]
        keyword = first.partition("#")[0].partition(":")[0]
        if keyword in _KEYWORDS or not self._is_name(first):
            return _separated(line)
        return [first, *_separated("".join(rest))]

    def fail(self, expected: str) -> NoReturn:
        raise BlockFileError(f"{self.path}:{self.number}: found {self.line.strip()[:60]!r}, expected {expected}")

    def numbers(self, words: list[str], expected: str) -> list[float]:
        try:
            values = [float(word) for word in words]
        except ValueError:
            self.fail(expected)
        if not all(math.isfinite(value) and abs(value) < 1e9 for value in values):
            self.fail(expected + ", below 1e9")
        return values


def _separated(line: str) -> list[str]:
    return line.partition("#")[0].replace(":", " : ").split()


def _read_rows(design: _Design, path: str) -> None:
    lines = _Lines(path)
    row: dict[str, float] | None = None
    subrows: list[tuple[float, float]] = []
    for words in lines:
        key = words[0].lower()
        if key == "corerow":
            row, subrows = {"sitespacing": 1.0}, []
        elif row is None:
            if key != "numrows":
                lines.fail("NumRows : n, or CoreRow Horizontal")
        elif key == "end":
            if not {"coordinate", "height"} <= set(row) or not subrows:
                lines.fail("Coordinate, Height, SubrowOrigin and NumSites before the End of a row")
            y = row["coordinate"]
            for x, sites in subrows:
                design.rows.append((x, y, x + sites * row["sitespacing"], y + row["height"]))
            design.row_height = max(design.row_height, row["height"])
            row = None
        else:
            for at in range(len(words) - 2):
                if words[at + 1] == ":" and words[at].lower() in {
                    "coordinate", "height", "sitespacing", "subroworigin", "numsites",
                }:  # fmt: skip
                    name = words[at].lower()
                    [row[name]] = lines.numbers([words[at + 2]], f"a number behind {words[at]} :")
                    if name == "numsites" and "subroworigin" in row:
                        subrows.append((row.pop("subroworigin"), row["numsites"]))
    if not design.rows:
        raise BlockFileError(f"{path}: found no row, expected CoreRow Horizontal ... End")


def _read_cells(design: _Design, path: str) -> None:
    lines = _Lines(path, lambda _: True)
    for words in lines:
        if words[0] in {"NumNodes", "NumTerminals"}:
            continue
        if len(words) not in {3, 4} or (len(words) == 4 and words[3] not in {"terminal", "terminal_NI"}):
            lines.fail("name width height, and terminal where it is one")
        width, height = lines.numbers(words[1:3], "a width and a height behind the name")
        if width < 0 or height < 0:
            lines.fail("a width and a height of at least 0")
        if words[0] in design.cells:
            lines.fail("each name once")
        design.cells[words[0]] = _Cell(width, height, terminal=len(words) == 4, fixed=len(words) == 4)


def _read_nets(design: _Design, path: str) -> None:
    # One with # that is no node is refused: cut at the #, it might be another node.
    lines = _Lines(path, lambda first: first in design.cells or "#" in first)
    wanted = 0
    for words in lines:
        if words[0] in {"NumNets", "NumPins"}:
            continue
        if words[0] == "NetDegree":
            if wanted:
                lines.fail(f"{wanted} more pins of the net before")
            if len(words) < 3 or words[1] != ":" or not words[2].isdecimal():
                lines.fail("NetDegree : number of pins")
            wanted = int(words[2])
            design.nets.append([])
            continue
        if not wanted:
            lines.fail("NetDegree : n, as the net before has all its pins")
        name, direction = words[0], words[1] if len(words) > 1 and words[1] != ":" else "B"
        if name not in design.cells:
            lines.fail("the name of a node in the .nodes file")
        if direction not in {"I", "O", "B"}:
            lines.fail("I, O or B behind the node's name")
        offset = [0.0, 0.0]
        if ":" in words:
            offset = lines.numbers(
                [word.lstrip("%") for word in words[words.index(":") + 1 :]], "two offsets behind the colon"
            )
            if len(offset) != 2:
                lines.fail("two offsets behind the colon")
        design.nets[-1].append((name, direction, offset[0], offset[1]))
        wanted -= 1
    if wanted:
        raise BlockFileError(f"{path}: found the end of the file, expected {wanted} more pins of the last net")


def _read_places(design: _Design, path: str) -> None:
    lines = _Lines(path, lambda first: first in design.cells or "#" in first)
    for words in lines:
        if words[0] not in design.cells:
            lines.fail("the name of a node in the .nodes file")
        if len(words) < 3:
            lines.fail("name x y : orientation")
        cell = design.cells[words[0]]
        cell.x, cell.y = lines.numbers(words[1:3], "two numbers behind the name")
        rest = [word for word in words[3:] if word != ":"]
        if rest and rest[0] in _ORIENTATIONS:
            cell.orientation = rest[0]
        elif rest and not rest[0].startswith("/"):
            lines.fail(f"an orientation: {', '.join(_ORIENTATIONS)}")
        cell.fixed = cell.fixed or any(word.startswith("/FIXED") for word in rest)


def _converted(design: _Design) -> tuple[str, str]:
    x0, y0 = min(row[0] for row in design.rows), min(row[1] for row in design.rows)
    width, height = max(row[2] for row in design.rows) - x0, max(row[3] for row in design.rows) - y0
    if not (width > 0 and height > 0):
        raise BlockFileError(f"the rows cover {width} x {height}, expected an area; check the .scl file")
    kinds = {name: _kind(cell, design.row_height) for name, cell in design.cells.items()}
    names = {name: f"Grp_{name}" if kind == "soft" else f"cell_{name}" if name.startswith("Grp") else name
             for name, kind in kinds.items()}  # fmt: skip
    nodes: list[tuple[str, list[str], dict[str, str | float]]] = []
    lines: list[str] = []
    index_of: dict[str, int] = {}
    for name, cell in design.cells.items():
        index_of[name] = len(nodes)
        orientation = cell.orientation if kinds[name] == "hard" else "N"
        # A square macro's pins are turned by the evaluator; a port has no sides.
        turns_sides = kinds[name] == "soft" or (kinds[name] == "hard" and cell.width != cell.height)
        if turns_sides and cell.orientation in _QUARTER_TURNS:
            raise BlockFileError(
                f"{name} has the orientation {cell.orientation}, which exchanges its width and height; expected one "
                f"of {', '.join(_MIRRORED)}, as nothing is turned by a quarter here"
            )
        if kinds[name] == "port":
            nodes.append((names[name], [], {"type": "port"}))
        else:
            nodes.append(
                (
                    names[name],
                    [],
                    {"type": "MACRO", "width": cell.width, "height": cell.height, "orientation": orientation},
                )
            )
        if cell.x is not None and cell.y is not None:
            x, y = cell.x - x0 + cell.width / 2, cell.y - y0 + cell.height / 2
            shown = "-" if kinds[name] == "port" else orientation
            lines.append(f"{len(nodes) - 1} {x!r} {y!r} {shown} {int(cell.fixed)}")
    driving: set[int] = set()
    for number, pins in enumerate(design.nets):
        turned = [
            (*_turned(design, pin, kinds[pin[0]]), kinds[pin[0]], names[pin[0]], index_of[pin[0]]) for pin in pins
        ]
        _add_net(nodes, lines, turned, number, driving)
    text = "".join(node_text(*node) for node in nodes)
    side = min(1024, max(1, math.isqrt(len([1 for kind in kinds.values() if kind == "hard"]) * 9)))
    header = [
        "# Imported from Bookshelf",
        f"# Columns : {max(10, side)}  Rows : {max(10, side)}",
        f"# Width : {width!r}  Height : {height!r}",
        "# node_index x y orientation fixed",
    ]
    return text, "\n".join([*header, *lines, ""])


def _turned(design: _Design, pin: tuple[str, str, float, float], kind: str) -> tuple[str, str, float, float]:
    """Return a pin with its offsets as the cell lies: a soft macro has no orientation that would turn them."""
    name, direction, x, y = pin
    if kind != "soft":
        return pin
    factor_x, factor_y = _MIRRORED[design.cells[name].orientation]
    return name, direction, x * factor_x, y * factor_y


def _kind(cell: _Cell, row_height: float) -> str:
    if cell.terminal or cell.fixed:
        return "hard" if cell.width * cell.height > 0 else "port"
    return "hard" if cell.height > row_height else "soft"


def _add_net(
    nodes: list[tuple[str, list[str], dict[str, str | float]]],
    lines: list[str],
    pins: list[tuple[str, str, float, float, str, str, int]],
    number: int,
    driving: set[int],
) -> None:
    """Adds the pins' nodes and the net. A port that drives a net already is doubled, where the net must be its own."""
    members: list[tuple[int, str]] = []
    for place, (_, direction, x, y, kind, name, index) in enumerate(pins):
        if kind == "port":
            members.append((index, direction))
        else:
            members.append((len(nodes), direction))
            nodes.append(
                (
                    f"{name}/{number}.{place}",
                    [],
                    {"type": "macro_pin", "macro_name": name, "x_offset": x, "y_offset": y},
                )
            )
    if len(members) < 2:
        return
    free = [member for member in members if member[0] not in driving]
    driver = next((member for member in free if member[1] == "O"), free[0] if free else members[0])
    at = driver[0]
    if not free:
        placed = next((line for line in lines if line.startswith(f"{at} ")), None)
        nodes.append((f"{nodes[at][0]}.{number}", [], {"type": "port"}))
        if placed:
            lines.append(f"{len(nodes) - 1} {placed.split(' ', 1)[1]}")
        at = len(nodes) - 1
    driving.add(at)
    nodes[at][1].extend(nodes[member[0]][0] for member in members if member is not driver)
