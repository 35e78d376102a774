"""Settings of soft actor-critic."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.algorithm_settings.base import AlgorithmSettings, Widths, check_window
from tasks.settings import at


class SACSettings(AlgorithmSettings):
    """SAC: an actor and twin critics, learned from rows that were drawn from a window of the newest rounds."""

    action_kinds: ClassVar[tuple[str, ...]] = ("box",)
    learns_from_window: ClassVar[bool] = True
    later: ClassVar[tuple[str, ...]] = ("normalize_observation",)

    name: Literal["sac"] = Field("sac", description="The algorithm.", json_schema_extra=at(0))
    hidden: Widths = Field((256, 256), description="Widths of the hidden layers.", json_schema_extra=at(1))
    learning_rate: float = Field(3e-4, gt=0, description="Adam's step size.", json_schema_extra=at(2))
    discount: float = Field(0.99, ge=0, le=1, description="Gamma.", json_schema_extra=at(3))
    window_rows: int = Field(
        1_000_000, ge=1, description="Steps that are learned from, the newest whole rounds.", json_schema_extra=at(4)
    )
    warm_up_rows: int = Field(
        1_000, ge=1, description="Steps in the window before learning begins.", json_schema_extra=at(5)
    )
    minibatch_rows: int = Field(256, ge=1, description="Rows of a minibatch.", json_schema_extra=at(6))
    minibatches: int = Field(64, ge=1, description="Minibatches of a round.", json_schema_extra=at(7))
    target_share: float = Field(
        0.005, gt=0, le=1, description="Share of the critics that moves into their targets.", json_schema_extra=at(8)
    )
    initial_temperature: float = Field(
        1.0, gt=0, description="What entropy is worth at the start.", json_schema_extra=at(9)
    )
    target_entropy: float | None = Field(
        None, description="Entropy that is kept, in nats; empty takes -1 a number.", json_schema_extra=at(10)
    )
    normalize_observation: bool = Field(
        False, description="Observations by their running mean and deviation.", json_schema_extra=at(11)
    )

    def check_round(self, rows: int) -> None:
        """Refuse a round that the window can't hold."""
        check_window(self.window_rows, self.warm_up_rows, rows)
