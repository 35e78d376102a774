"""A folder that holds a search's state: whole after any kill, and refused where it is another search's."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.native.floorplan.placement_cost import PlacementCost
    from penstock.native.floorplan.placing.positions import Positions

STATE = "state.json"
FORMAT = 1
"""Number of the state's form and of the search itself: a state of another one can't be continued to the same bytes."""
_LEFT_OVER = re.compile(r"\.\d+-\w+\.\w+")
_ADVICE = "take another OUT, or --again to begin anew"


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the rest of a search depends on, besides the block."""

    identity: dict[str, Any]
    """The request: digests of the block, settings of the evaluator, weights, seed, and so on."""
    moves: int
    """Legal moves of each chain, over all segments."""
    segments: int
    threads: int
    done: int
    """Finished segments."""
    judged: int
    """Legal moves of all chains so far."""
    seconds: float
    """Wall time so far, the time between a stop and its resume left out. Nothing else depends on it."""
    costs: tuple[float, ...]
    """Weighted, by chain."""
    chains: tuple[Positions, ...]
    best_cost: float
    best: Positions
    curve: tuple[dict[str, float], ...]
    """`seconds`, `moves` of each chain, `cost` of the best chain and `best` so far: at the start, and by segment."""

    def encode(self) -> bytes:
        """Return the state as JSON, with a digest of its content; numbers are exact."""
        # Not `asdict`, which copies every number: chains wait while this runs.
        text = json.dumps({field.name: getattr(self, field.name) for field in fields(self)}, sort_keys=True)
        return f'{{"format": {FORMAT}, "digest": "{_digest_of(text)}", {text[1:]}'.encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> State:
        """Read what `encode` wrote.

        Raises:
            ValueError: Damaged, or of another format.
        """
        try:
            values = json.loads(data)
            form, digest = values.pop("format"), values.pop("digest")
            found = _digest(values)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{where}: found no state of a placement; {_ADVICE}") from None
        if form != FORMAT:
            shown = form if isinstance(form, int) else "none"
            raise ValueError(f"{where}: found format {shown}, expected {FORMAT}: another version wrote it; {_ADVICE}")
        if digest != found:
            raise ValueError(
                f"{where}: is damaged: the digest of its content is {found}, not the one it has; {_ADVICE}"
            )
        values |= {"costs": tuple(values["costs"]), "curve": tuple(values["curve"])}
        values |= {"chains": tuple(map(_exact, values["chains"])), "best": _exact(values["best"])}
        return cls(**values)


def _exact(positions: list[list[Any]]) -> Positions:
    return tuple((node, x, y, orientation) for node, x, y, orientation in positions)


def _digest(values: object) -> str:
    return _digest_of(json.dumps(values, sort_keys=True))


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def describe_block(plc: PlacementCost) -> dict[str, Any]:
    """Return what a search's result depends on in an evaluator: digests of contents, and settings by name."""
    nodes = range(plc.get_node_count())
    sizes = [plc.get_node_width_height(macro) for macro in plc.get_macro_indices()]
    places = [
        (node, *plc.get_node_location(node), plc.get_macro_orientation(node), plc.is_node_fixed(node))
        for node in nodes
        if plc.get_node_type(node) != "MACRO_PIN" and plc.is_node_placed(node)
    ]
    return {
        "netlist": hashlib.sha256(plc.netlist_text().encode()).hexdigest(),
        "placement": _digest(places),
        "sizes of macros": _digest(sizes),
        "canvas": list(plc.get_canvas_width_height()),
        "grid": list(plc.get_grid_num_columns_rows()),
        "congestion grid": list(plc.get_congestion_grid_num_columns_rows()),
        "routes": [*plc.get_routes_per_micron(), *plc.get_macro_routing_allocation()],
        "smoothing": plc.get_congestion_smooth_range(),
        "overlap threshold": plc.get_overlap_threshold(),
        "macro spacing": list(plc.get_macro_macro_spacing()),
        "blockages": plc.get_blockages(),
    }


class OutFolder:
    """The folder of one search. Every file in it is replaced as a whole, and stays after a loss of power."""

    def __init__(self, path: Path) -> None:
        """Check a folder; it is created with the first file.

        Raises:
            ValueError: It is a file, or holds what no search wrote.
        """
        self.path = path
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path}: found a file, expected a folder for the result; take another OUT")
        if path.is_dir() and not (path / STATE).exists():
            others = sorted(file.name for file in path.iterdir() if not _LEFT_OVER.fullmatch(file.name))
            if others:
                raise ValueError(
                    f"{path}: found {others[0]!r} and no {STATE}, expected an empty folder or that of a search; "
                    "take another OUT"
                )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Create the folder and keep other processes out while the block runs.

        Raises:
            ValueError: Another process places into it, or it can't be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ValueError(f"{self.path}: cannot be made ({error.strerror}); take another OUT") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{self.path}: another process places into it now; wait for its end, or take another OUT"
                ) from None
            except OSError:
                pass  # some network file systems lock no folders; two searches would only do the same work twice
            for file in self.path.iterdir():
                if _LEFT_OVER.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            yield
        finally:
            os.close(descriptor)

    def load(self, identity: dict[str, Any]) -> State | None:
        """Return the state of the search that is asked for, or None where none has begun.

        Raises:
            ValueError: The state is damaged, or another search's.
        """
        try:
            data = (self.path / STATE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        state = State.decode(data, str(self.path / STATE))
        for name, expected in json.loads(json.dumps(identity)).items():
            found = state.identity.get(name)
            if found != expected:
                raise ValueError(
                    f"{self.path}: was begun with {name} {_short(found)}, and is asked for {_short(expected)}; give "
                    f"what it was begun with, {_ADVICE}"
                )
        return state

    def save(self, state: State) -> None:
        """Replace the state."""
        self.write(STATE, lambda path: path.write_bytes(state.encode()))

    def write(self, name: str, make: Callable[[Path], object]) -> Path:
        """Let `make` write a file under a temporary name with the same ending, and give it its name.

        Raises:
            ValueError: It can't be written. What was there before stays.
        """
        target, temporary = self.path / name, self.path / f".{os.getpid()}-{name}"
        try:
            make(temporary)
            _sync(temporary)
            temporary.replace(target)
            _sync(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise ValueError(
                f"{target}: cannot be written ({error.strerror}); what is in the folder stays: free space or make it "
                "writable, and give the same command again"
            ) from None
        return target


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _short(value: object) -> str:
    """Return a value as a message has it: the first digits of a digest."""
    if value is None:
        return "none"
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else repr(value)
