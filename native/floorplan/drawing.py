"""Pictures of placements: macros, nets and congestion, as SVG or PNG."""

from __future__ import annotations

import struct
import zlib
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import os

    from penstock.native.floorplan.placement_cost import PlacementCost

_HARD, _SOFT, _PORT, _NET, _EDGE = (70, 110, 170), (150, 190, 140), (40, 40, 40), (90, 60, 130), (30, 40, 60)
_MOST_NETS = 2000

Colour = tuple[int, int, int]


class _Sheet(Protocol):
    def box(
        self, x0: float, y0: float, x1: float, y1: float, fill: Colour, opacity: float, label: str = ""
    ) -> None: ...

    def frame(self, x0: float, y0: float, x1: float, y1: float, stroke: Colour) -> None: ...

    def line(self, x0: float, y0: float, x1: float, y1: float, stroke: Colour, opacity: float) -> None: ...

    def data(self) -> bytes: ...


def draw(plc: PlacementCost, path: str | os.PathLike[str], width_pixels: int = 900) -> None:
    """Draw a placement: congestion red, soft macros green, hard macros blue, ports black, heavy ties as lines.

    Args:
        plc: What is drawn, as it is now.
        path: Its name ends in .svg or .png.
        width_pixels: Of the picture; its height follows from the canvas.

    Raises:
        ValueError: Another ending, or an invalid width.
    """
    ending = Path(path).suffix.lower()
    if ending not in {".svg", ".png"}:
        raise ValueError(f"{path}: found the ending {ending!r}, expected .svg or .png")
    if not 16 <= width_pixels <= 20_000:
        raise ValueError(f"width_pixels is {width_pixels}, expected 16 to 20,000")
    canvas = plc.get_canvas_width_height()
    scale = width_pixels / canvas[0]
    height_pixels = min(20_000, max(1, round(canvas[1] * scale)))
    sheet: _Sheet = (
        _Svg(width_pixels, height_pixels, scale) if ending == ".svg" else _Png(width_pixels, height_pixels, scale)
    )
    _draw_congestion(plc, sheet)
    _draw_macros(plc, sheet)
    _draw_ties(plc, sheet)
    sheet.frame(0.0, 0.0, *canvas, _EDGE)
    Path(path).write_bytes(sheet.data())


def _draw_congestion(plc: PlacementCost, sheet: _Sheet) -> None:
    columns, rows = plc.get_congestion_grid_num_columns_rows()
    width, height = (side / count for side, count in zip(plc.get_canvas_width_height(), (columns, rows), strict=True))
    worst = np.maximum(plc.get_horizontal_routing_congestion(), plc.get_vertical_routing_congestion())
    for cell, value in enumerate(worst.tolist()):
        row, column = divmod(cell, columns)
        if value > 0.0:
            box = (column * width, row * height, (column + 1) * width, (row + 1) * height)
            sheet.box(*box, (200, 40, 30), min(0.75, 0.5 * value))


def _draw_macros(plc: PlacementCost, sheet: _Sheet) -> None:
    macros = [macro for macro in plc.get_macro_indices() if plc.is_node_placed(macro)]
    for soft in (True, False):
        for macro in macros:
            if plc.is_node_soft_macro(macro) != soft:
                continue
            (x, y), (width, height) = plc.get_node_location(macro), plc.get_node_width_height(macro)
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            sheet.box(*box, _SOFT if soft else _HARD, 0.35 if soft else 0.7, plc.get_node_name(macro))
            if not soft:
                sheet.frame(*box, _EDGE)
    dot = max(plc.get_canvas_width_height()) / 300
    for node in range(plc.get_node_count()):
        if plc.get_node_type(node) == "PORT" and plc.is_node_placed(node):
            x, y = plc.get_node_location(node)
            sheet.box(x - dot, y - dot, x + dot, y + dot, _PORT, 1.0, plc.get_node_name(node))


def _draw_ties(plc: PlacementCost, sheet: _Sheet) -> None:
    macros = plc.get_macro_indices()
    weights = np.array(plc.get_macro_adjacency()).reshape(len(macros), len(macros))
    first, second = np.nonzero(np.triu(weights))
    found = weights[first, second]
    for tie in np.argsort(-found, kind="stable")[:_MOST_NETS].tolist():
        a, b = macros[first[tie]], macros[second[tie]]
        if plc.is_node_placed(a) and plc.is_node_placed(b):
            opacity = 0.1 + 0.5 * float(found[tie] / found.max())
            sheet.line(*plc.get_node_location(a), *plc.get_node_location(b), _NET, opacity)


class _Svg:
    """Coordinates are the canvas's, from the lower left; the picture's go down from the upper left."""

    def __init__(self, width: int, height: int, scale: float) -> None:
        self._height, self._scale = height, scale
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: Colour, opacity: float, label: str = "") -> None:
        title = f"<title>{escape(label)}</title>" if label else ""
        self._parts.append(
            f'<rect {self._place(x0, y0, x1, y1)} fill="rgb{fill}" fill-opacity="{opacity:.3f}">{title}</rect>'
        )

    def frame(self, x0: float, y0: float, x1: float, y1: float, stroke: Colour) -> None:
        self._parts.append(f'<rect {self._place(x0, y0, x1, y1)} fill="none" stroke="rgb{stroke}"/>')

    def line(self, x0: float, y0: float, x1: float, y1: float, stroke: Colour, opacity: float) -> None:
        a, b, c, d = x0 * self._scale, self._down(y0), x1 * self._scale, self._down(y1)
        self._parts.append(
            f'<line x1="{a:.2f}" y1="{b:.2f}" x2="{c:.2f}" y2="{d:.2f}" stroke="rgb{stroke}" '
            f'stroke-opacity="{opacity:.3f}"/>'
        )

    def data(self) -> bytes:
        return "\n".join([*self._parts, "</svg>\n"]).encode()

    def _down(self, y: float) -> float:
        return self._height - y * self._scale

    def _place(self, x0: float, y0: float, x1: float, y1: float) -> str:
        width, height = (x1 - x0) * self._scale, (y1 - y0) * self._scale
        return f'x="{x0 * self._scale:.2f}" y="{self._down(y1):.2f}" width="{width:.2f}" height="{height:.2f}"'


class _Png:
    """Draw in pixels without smoothing; without text, so that no font is needed."""

    def __init__(self, width: int, height: int, scale: float) -> None:
        self._pixels = np.full((height, width, 3), 255.0, dtype=np.float32)
        self._scale = scale

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: Colour, opacity: float, label: str = "") -> None:  # noqa: ARG002
        left, right = self._across(x0), max(self._across(x1), self._across(x0) + 1)
        top, bottom = self._down(y1), max(self._down(y0), self._down(y1) + 1)
        part = self._pixels[top:bottom, left:right]
        part += opacity * (np.array(fill, dtype=np.float32) - part)

    def frame(self, x0: float, y0: float, x1: float, y1: float, stroke: Colour) -> None:
        for a, b, c, d in ((x0, y0, x1, y0), (x1, y0, x1, y1), (x1, y1, x0, y1), (x0, y1, x0, y0)):
            self.line(a, b, c, d, stroke, 1.0)

    def line(self, x0: float, y0: float, x1: float, y1: float, stroke: Colour, opacity: float) -> None:
        height, width = self._pixels.shape[:2]
        steps = int(min(4 * (width + height), max(abs(x1 - x0), abs(y1 - y0)) * self._scale)) + 2
        columns = np.rint(np.linspace(x0, x1, steps) * self._scale).astype(np.int64)
        lines = np.rint(height - np.linspace(y0, y1, steps) * self._scale).astype(np.int64)
        # A coordinate one pixel beyond the edge is the edge itself, rounded.
        inside = (columns >= 0) & (columns <= width) & (lines >= 0) & (lines <= height)
        at = np.unique(np.minimum(lines[inside], height - 1) * width + np.minimum(columns[inside], width - 1))
        flat = self._pixels.reshape(-1, 3)
        flat[at] += opacity * (np.array(stroke, dtype=np.float32) - flat[at])

    def data(self) -> bytes:
        height, width = self._pixels.shape[:2]
        rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # the first byte of a row says: not filtered
        rows[:, 1:] = np.rint(self._pixels).astype(np.uint8).reshape(height, -1)
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        chunks = (b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )

    def _across(self, x: float) -> int:
        return int(min(max(round(x * self._scale), 0), self._pixels.shape[1]))

    def _down(self, y: float) -> int:
        return int(min(max(round(self._pixels.shape[0] - y * self._scale), 0), self._pixels.shape[0]))
