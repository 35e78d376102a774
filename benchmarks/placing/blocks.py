"""Names the seven blocks that placers are compared on, and makes their files.

    python -m benchmarks.placing.blocks FOLDER [--only NAME ...]

Ariane133 comes with its published clusters; Ariane136 and the MemPool tile are flat netlists, which `group_netlist`
clusters here; four are generated. `PENSTOCK_TEST_DATA` names the folder with `ariane133/` and `flat/`. The same name
gives the same bytes, so a block that FOLDER has is not made again: remove its folder after a change of what makes it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from penstock.native.floorplan import BlockSpec, PlacementCost, create_placement_cost, generate_block, group_netlist

GENERATED = {
    "generated-1": BlockSpec(20, 60, 40, columns=16, rows=16, hard_share=0.25, soft_share=0.3, side=400.0, seed=1),
    "generated-2": BlockSpec(50, 200, 120, columns=20, rows=24, hard_share=0.35, soft_share=0.25, side=700.0, seed=2),
    "generated-3": BlockSpec(100, 450, 300, columns=28, rows=22, hard_share=0.4, soft_share=0.2, side=1100.0, seed=3),
    "generated-4": BlockSpec(150, 800, 500, columns=32, rows=32, hard_share=0.45, soft_share=0.2, side=1500.0, seed=4),
}
GROUPED = ("ariane136", "mempool_tile")
NAMES = ("ariane133", *GROUPED, *GENERATED)


def block(name: str, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the paths of a block's netlist and placement, which are below `folder` unless the block is published so.

    Raises:
        ValueError: There is no block of this name.
        SystemExit: `PENSTOCK_TEST_DATA` does not name the folder that has it.
    """
    if name not in NAMES:
        raise ValueError(f"found the block {name!r}, expected one of {', '.join(NAMES)}")
    if name == "ariane133":
        return real_file("ariane133/netlist.pb.txt.gz"), real_file("ariane133/initial.plc")
    made = Path(folder) / name
    paths = made / ("netlist.pb.txt.gz" if name in GROUPED else "netlist.pb.txt"), made / "initial.plc"
    if not all(path.exists() for path in paths):
        Path(folder).mkdir(parents=True, exist_ok=True)
        # Whoever finds the folder finds whole files in it: they are made beside it.
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            _make(name, Path(beside) / name)
            shutil.rmtree(made, ignore_errors=True)
            (Path(beside) / name).rename(made)
    return paths


def _make(name: str, folder: Path) -> None:
    if name in GENERATED:
        generate_block(folder, GENERATED[name])
    else:
        group_netlist(real_file(f"flat/{name}.pb.txt.gz"), real_file(f"flat/{name}.initial.plc"), folder)


def real_file(path: str) -> Path:
    """Return the path of a file of real netlists; where there is none, the program ends and says what to set."""
    data = os.environ.get("PENSTOCK_TEST_DATA")
    if data is None or not (Path(data) / path).exists():
        found = f"is {data!r}" if data else "is not set"
        raise SystemExit(
            f"PENSTOCK_TEST_DATA {found}, expected a folder with {path}: set it; generated blocks need none"
        )
    return Path(data) / path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder for the blocks that are made")
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES, help="the blocks to make")
    arguments = parser.parse_args()
    for name in arguments.only:
        print(name, *block(name, arguments.folder))


if __name__ == "__main__":
    main()


def legal_start(name: str, cache: Path) -> PlacementCost:
    """Return the block, its hard macros legal and its soft macros placed by forces."""
    plc = create_placement_cost(*block(name, cache))
    if not plc.legalize(only_hard=True):
        raise SystemExit(f"{name}: no legal placement near the given one")
    plc.place_soft_macros()
    return plc
