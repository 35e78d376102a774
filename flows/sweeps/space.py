"""Spaces of settings that searches draw from: a range or a list of choices for each setting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import Field, model_validator

from penstock.flows.sweeps.points import check_points, make_point, varied_settings
from penstock.storage.errors import ConfigError
from penstock.tasks.seeds import Purpose, seed_of
from penstock.tasks.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.config.run import TrainConfig

_FACTORS = (0.8, 1.25)
_RESAMPLED_SHARE = 0.25
_SIGNIFICANT_DIGITS = 6


class Range(Settings):
    """All numbers from `low` to `high`, both included; whole ones if both bounds are whole numbers."""

    low: int | float = Field(description="The least value.")
    high: int | float = Field(description="The greatest value.")
    log: bool = Field(False, description="Draw evenly over the logarithm, as suits learning rates.")

    @model_validator(mode="after")
    def _is_range(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g}, high = {self.high:g} is no range; expected low < high")
        if self.log and self.low <= 0:
            raise ValueError(f"log = true with low = {self.low:g}; a logarithmic range begins above 0")
        return self

    @property
    def is_whole(self) -> bool:
        """Return whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> int | float:
        """Return the value at a share of the range from 0 to 1, with six significant digits."""
        low, high = float(self.low), float(self.high + 1 if self.is_whole else self.high)
        value = low * (high / low) ** share if self.log else low + share * (high - low)
        return self.nearest(math.floor(value) if self.is_whole else value)

    def nearest(self, value: float) -> int | float:
        """Return the nearest value of the range, with six significant digits."""
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.is_whole else min(max(rounded(inside), float(self.low)), float(self.high))


Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Choice: TypeAlias = Range | list[Any]
"""The values that a setting is drawn from: a range, or a list of values."""


def resolved_space(space: Mapping[str, Choice]) -> dict[str, Choice]:
    """Return a space by the full names of its settings, sorted.

    Raises:
        ConfigError: it is empty, or a name or a list of values is wrong.
    """
    if not space:
        raise ConfigError("space: it is empty; name one setting at least, such as learning_rate")
    for setting, choices in space.items():
        if isinstance(choices, list) and not choices:
            raise ConfigError(f"space: '{setting}' has no values; give it one at least, or leave it out")
    named = zip(varied_settings("space", space), space.values(), strict=True)
    return dict(sorted(named, key=lambda item: item[0]))


def check_space(name: str, config: TrainConfig, space: Mapping[str, Choice]) -> None:
    """Refuse values that no run can have: decisions are recorded, and a run could not begin with one that is wrong.

    Each value of a list and both ends of a range are tried, of a range of fractions also a value between them; the
    other settings at their first values.

    Args:
        name: name of the sweep.
        config: settings that its runs share.
        space: by full names.

    Raises:
        ConfigError: a value is wrong.
    """
    first = {path: _tried(choices)[0] for path, choices in space.items()}
    check_points(
        make_point(name, config, {**first, path: value}) for path, choices in space.items() for value in _tried(choices)
    )


def describe_space(space: Mapping[str, Choice]) -> dict[str, object]:
    """Return a space as JSON."""
    return {
        name: choices.model_dump(mode="json") if isinstance(choices, Range) else choices
        for name, choices in space.items()
    }


def draw(space: Mapping[str, Choice], seed: int, *ids: int) -> dict[str, Any]:
    """Draw a value for each setting.

    Args:
        space: by full names, sorted.
        seed: of the sweep.
        ids: what the draw is for; the same ids give the same values.
    """
    return {name: _pick(choices, uniform(seed, *ids, index)) for index, (name, choices) in enumerate(space.items())}


def perturb(space: Mapping[str, Choice], values: Mapping[str, Any], seed: int, *ids: int) -> dict[str, Any]:
    """Change values a little: times 0.8 or 1.25 in a range, to a neighbour in a list; one in four is drawn anew.

    Args:
        space: by full names, sorted.
        values: of all settings in the space.
        seed: of the sweep.
        ids: what the change is for; the same ids give the same values.
    """
    changed = {}
    for index, (name, choices) in enumerate(space.items()):
        if uniform(seed, *ids, index, 0) < _RESAMPLED_SHARE:
            changed[name] = _pick(choices, uniform(seed, *ids, index, 1))
            continue
        up = uniform(seed, *ids, index, 2) < 0.5
        if isinstance(choices, Range):
            changed[name] = choices.nearest(values[name] * _FACTORS[up])
        else:
            place = choices.index(values[name]) + (1 if up else -1)
            changed[name] = choices[min(max(place, 0), len(choices) - 1)]
    return changed


def rounded(value: float) -> float:
    """Round to six significant digits, which a person can read."""
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")


def uniform(seed: int, *ids: int) -> float:
    """Return a number of [0, 1) that follows from a sweep's seed and what it is for."""
    return (seed_of(seed, Purpose.SWEEP, *ids) >> 11) / 2**53


def _tried(choices: Choice) -> list[Any]:
    if not isinstance(choices, Range):
        return choices
    # Between 1.0 and 4.0 are values that a setting of whole numbers does not take.
    return [choices.at(0.0), choices.at(1.0), *([] if choices.is_whole else [choices.at(1 / math.pi)])]


def _pick(choices: Choice, share: float) -> Any:
    return choices.at(share) if isinstance(choices, Range) else choices[int(share * len(choices))]
