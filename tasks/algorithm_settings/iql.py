"""Settings of implicit Q-learning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.algorithm_settings.base import AlgorithmSettings, Widths
from tasks.settings import at


class IQLSettings(AlgorithmSettings):
    """Implicit Q-learning: better than what is stored, by what its rewards say."""

    name: Literal["iql"] = Field("iql", description="The algorithm.", json_schema_extra=at(0))
    hidden: Widths = Field((64, 64), description="Widths of the hidden layers.", json_schema_extra=at(1))
    learning_rate: float = Field(3e-4, gt=0, description="Adam's step size.", json_schema_extra=at(2))
    discount: float = Field(0.99, ge=0, le=1, description="Gamma.", json_schema_extra=at(3))
    expectile: float = Field(
        0.7,
        gt=0,
        lt=1,
        description="Tau: 0.5 values what was done on average, 1 the best of it.",
        json_schema_extra=at(4),
    )
    inverse_temperature: float = Field(
        3.0, ge=0, description="Beta: how strongly advantages weigh; 0 clones.", json_schema_extra=at(5)
    )
    weight_limit: float = Field(100.0, gt=0, description="Largest weight of a row.", json_schema_extra=at(6))
    target_rate: float = Field(
        0.005, gt=0, le=1, description="Share of the critic that its target takes over a step.", json_schema_extra=at(7)
    )
    reward_scale: float = Field(1.0, gt=0, description="Factor on rewards while learning.", json_schema_extra=at(8))
    minibatch_rows: int = Field(512, ge=1, description="Rows of a minibatch.", json_schema_extra=at(9))
    epochs: int = Field(1, ge=1, description="Passes over the rows of a round.", json_schema_extra=at(10))
