"""Targets for the files of chip blocks: netlists and placements, which C++ reads, and Bookshelf."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from penstock.native._floorplan import BlockFileError
from penstock.native.floorplan import PlacementCost
from penstock.native.floorplan.bookshelf import import_bookshelf
from penstock.native.floorplan.placement_cost import open_placement
from penstock.native.floorplan.placing import place
from penstock.native.floorplan.placing.state import State
from penstock.native.floorplan.synthetic import BlockSpec, generate_block

from .mutators import mutate_json, mutate_text
from .target import Target

FOLDER = Path(tempfile.mkdtemp(prefix="penstock-fuzzing-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
SPEC = BlockSpec(hard_macros=2, soft_macros=2, ports=2, nets_per_macro=1, columns=5, rows=4)
NETLIST, INITIAL = generate_block(FOLDER / "block", SPEC)

BETWEEN = b"\n----\n"
"""Separates the four files of a Bookshelf design within one input."""
ENDINGS = ("nodes", "nets", "pl", "scl")
BOOKSHELF = b"""UCLA nodes 1.0
NumNodes : 4
NumTerminals : 1
a 4 2
b 6 2
M 10 6
pad 0 0 terminal
----
UCLA nets 1.0
NumNets : 2
NetDegree : 3 n0
    a I : 1 0.5
    M O : -3 2
    b I
NetDegree : 2
    pad B : 0 0
    a O : -2 -1
----
UCLA pl 1.0
a 100 10 : N
b 110 12 : N
M 120 10 : FN
pad 98 9 : N /FIXED
----
NumRows : 1
CoreRow Horizontal
 Coordinate : 10
 Height : 2
 Sitespacing : 1
 SubrowOrigin : 98 NumSites : 40
End
"""


def netlist_of(data: bytes) -> PlacementCost:
    path = FOLDER / "netlist.pb.txt"
    path.write_bytes(data)
    plc = PlacementCost(path)
    plc.apply_comments(plc.netlist_comments())
    return plc


def check_netlist(plc: PlacementCost, data: bytes) -> None:
    text = plc.netlist_text()
    path = FOLDER / "again.pb.txt"
    path.write_text(text, encoding="utf-8", newline="")
    assert PlacementCost(path).netlist_text() == text


def placement_of(data: bytes) -> PlacementCost:
    path = FOLDER / "changed.plc"
    path.write_bytes(data)
    return open_placement(NETLIST, path)


def check_placement(plc: PlacementCost, data: bytes) -> None:
    """A placement that is saved is read as the same one; its header has costs, which must be computable."""
    first, second = FOLDER / "first.plc", FOLDER / "second.plc"
    plc.save_placement(first)
    open_placement(NETLIST, first).save_placement(second)
    assert places(first) == places(second)


def places(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def bookshelf_of(data: bytes) -> PlacementCost:
    """Import a design, and open the block that it became: a design that is accepted can be used."""
    parts = data.split(BETWEEN)
    for ending, part in zip(ENDINGS, [*parts, b"", b"", b""], strict=False):
        (FOLDER / f"design.{ending}").write_bytes(part)
    netlist, initial = import_bookshelf(FOLDER / "design", FOLDER / "imported")
    try:
        return open_placement(netlist, initial)
    except BlockFileError as error:
        raise AssertionError(f"the import wrote a block that is refused: {error}") from error


def state_of(data: bytes) -> State:
    return State.decode(data, "state.json")


def check_state(state: State, data: bytes) -> None:
    assert State.decode(state.encode(), "again") == state


place(open_placement(NETLIST, INITIAL), moves=8, threads=2, segments=2, out=FOLDER / "placed")
PLACING = (FOLDER / "placed" / "state.json").read_bytes()

REFUSED = (BlockFileError,)
BLOCK_TARGETS = (
    Target("netlist", netlist_of, (NETLIST.read_bytes(),), REFUSED, check_netlist, mutate_text),
    Target("placement", placement_of, (INITIAL.read_bytes(),), REFUSED, check_placement, mutate_text),
    Target("placing", state_of, (PLACING,), (ValueError,), check_state, mutate_json),
    Target("bookshelf", bookshelf_of, (BOOKSHELF,), REFUSED, mutate=mutate_text),
)
