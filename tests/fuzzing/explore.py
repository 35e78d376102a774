"""Explores one target with atheris: `python -m tests.fuzzing.explore TARGET FAULTS [options of libFuzzer] CORPUS...`.

An error that the target does not document is written to FAULTS with the input that raised it, once per place, and the
search goes on. A crash, a hang or too much memory ends the process, and libFuzzer writes the input to the same folder.
"""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from hashlib import sha1
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from .target import Target

ROOT = Path(__file__).parents[2]


def place_of(error: Exception) -> str:
    """Return the error's type and the innermost line of this repository that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
    inner = frames[-1]
    return f"{type(error).__name__} at {Path(inner.filename).relative_to(ROOT)}:{inner.lineno}"


class Exploration:
    """Runs a target's inputs, and keeps the first one of each fault."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._places: set[str] = set()

    def run(self, data: bytes) -> None:
        try:
            self._target.run(data)
        except Exception as error:  # noqa: BLE001  (any error but a refusal is a fault)
            place = place_of(error)
            if place not in self._places:
                self._places.add(place)
                path = self._folder / sha1(data).hexdigest()
                path.write_bytes(data)
                print(f"fault: {place}: {str(error)[:200]!r}, input {path}", flush=True)

    def mutate(self, data: bytes, most_bytes: int, seed: int) -> bytes:
        """Change an input as libFuzzer does, guided by the comparisons that it saw, or by the target's own mutator."""
        random = Random(seed)
        if random.random() < 0.4:
            return bytes(atheris.Mutate(data, most_bytes))
        return self._target.mutate(bytes(data), random)[:most_bytes]


def main() -> None:
    name, folder, *options = sys.argv[1:]
    logging.disable(logging.CRITICAL)  # a damaged hint is logged, which is not looked at here
    warnings.simplefilter("ignore")
    # An editable installation has a finder whose modules are not instrumented. Python's own one finds them as well.
    sys.path.insert(0, str(ROOT))
    sys.meta_path.sort(key=lambda finder: type(finder).__module__.startswith("_editable"))
    with atheris.instrument_imports(include=["penstock"], enable_loader_override=False):
        from .targets import TARGETS

        exploration = Exploration(TARGETS[name], Path(folder))
    atheris.Setup([sys.argv[0], *options], exploration.run, custom_mutator=exploration.mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
