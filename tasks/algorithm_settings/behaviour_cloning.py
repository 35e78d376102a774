"""Settings of behaviour cloning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.algorithm_settings.base import AlgorithmSettings, Widths
from tasks.settings import at


class BehaviourCloningSettings(AlgorithmSettings):
    """Behaviour cloning: the stored actions become the likeliest ones."""

    name: Literal["behaviour_cloning"] = Field(
        "behaviour_cloning", description="The algorithm.", json_schema_extra=at(0)
    )
    hidden: Widths = Field((64, 64), description="Widths of the hidden layers.", json_schema_extra=at(1))
    learning_rate: float = Field(1e-3, gt=0, description="Adam's step size.", json_schema_extra=at(2))
    minibatch_rows: int = Field(512, ge=1, description="Rows of a minibatch.", json_schema_extra=at(3))
    epochs: int = Field(1, ge=1, description="Passes over the rows of a round.", json_schema_extra=at(4))
    gradient_norm: float = Field(1.0, gt=0, description="Largest gradient norm.", json_schema_extra=at(5))
