"""What `tasks.capacity` takes as given, and where each is from: measured once, or assumed until somebody says more.

Measured ones are those that need a cluster, a Prefect server or a store to be measured; what a configuration's rounds
take is measured on the spot (`tasks.calibrate`). Imports no torch.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = Path(__file__).with_name("capacity_constants.json")


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that predictions rest on."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str
    """When, where and by which command it was measured; or that it is assumed, or given."""


def constants() -> dict[str, Constant]:
    """All of them, by name."""
    read = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Constant(name=name, **facts) for name, facts in read.items()}


def with_assumptions(given: Iterable[str], tried: Iterable[Constant] = ()) -> dict[str, Constant]:
    """The constants, some of them with other values.

    Args:
        given: `NAME=VALUE` each, as typed.
        tried: more of them, that were measured on the spot.

    Raises:
        ConfigError: there is none of that name, or the value is no number above 0.
    """
    found = {constant.name: constant for constant in tried} | constants()
    for text in given:
        name, _, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in found:
            close = difflib.get_close_matches(name, found, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ConfigError(f"--assume {text}: there is no '{name}'; {hint}There are: {', '.join(found)}")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise ConfigError(f"--assume {text}: found '{value}', expected a number above 0, as in {name}=0.5")
        constant = found[name]
        found[name] = Constant(name, number, constant.unit, constant.meaning, "given by --assume")
    return found
