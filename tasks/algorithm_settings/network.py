"""Settings of algorithms that let one choose their network."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from storage.errors import ConfigError
from tasks.algorithm_settings.base import AlgorithmSettings, Widths
from tasks.settings import at

if TYPE_CHECKING:
    from native import EnvironmentSpec

_SMALLEST_PIXELS = 36


class NetworkSettings(AlgorithmSettings):
    """What stands between observation and outputs."""

    later: ClassVar[tuple[str, ...]] = ("network", "features", "sequence_steps")

    network: Literal["mlp", "nature", "residual", "recurrent", "floorplan"] = Field(
        "mlp",
        description="What comes before the hidden layers: nothing, convolutions for images (nature, residual), a "
        "memory (recurrent), or maps and messages over a netlist (floorplan).",
        json_schema_extra=at(1),
    )
    features: int = Field(
        256,
        ge=1,
        description="Numbers that convolutions give, or that a memory has; of floorplan, those of a macro and of a "
        "cell; a plain mlp has none.",
        json_schema_extra=at(2),
    )
    sequence_steps: int = Field(
        16,
        ge=1,
        description="Steps of a sequence that a recurrent network learns from at once; a round is a whole number.",
        json_schema_extra=at(3),
    )

    hidden: Widths = Field((64, 64), description="Widths of the hidden layers.", json_schema_extra=at(4))

    @property
    def columns(self) -> tuple[str, ...]:
        """The algorithm's, and the memory's if there is one."""
        return (*self.row_columns, "memory") if self.network == "recurrent" else self.row_columns

    @property
    def row_steps(self) -> int:
        """Of a training row."""
        return self.sequence_steps if self.network == "recurrent" else 1

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse observations that the network can't take."""
        super().check_environment(environment)
        if self.network == "floorplan" and "edges" not in environment.get("facts", {}):
            raise ConfigError(
                f"algorithm.network = 'floorplan': {environment['id']} has no netlist, expected Floorplan-v0; "
                "choose mlp"
            )
        observed = environment["observation"]
        shape = observed.get("behind_mask", observed["shape"])
        if self.network in ("nature", "residual") and (
            len(shape) != 3 or (self.network == "nature" and min(shape[1:]) < _SMALLEST_PIXELS)
        ):
            raise ConfigError(
                f"algorithm.network = '{self.network}': {environment['id']} observes {list(shape)}, expected images "
                f"[channels, height, width]{' of 36 x 36 at least' if self.network == 'nature' else ''}; choose mlp"
            )


def check_pixels(network: str, *, normalized: bool) -> None:
    """For networks that take images, which are not normalised number by number; raises as `check_round`."""
    if normalized and network in ("nature", "residual"):
        raise ValueError(
            f"algorithm.normalize_observation = true: network = '{network}' takes pixels as they are; leave it out"
        )
