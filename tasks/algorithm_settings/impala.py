"""Settings of IMPALA."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.algorithm_settings.base import check_minibatches
from tasks.algorithm_settings.network import NetworkSettings, check_pixels
from tasks.settings import at


class IMPALASettings(NetworkSettings):
    """IMPALA: an actor-critic with V-trace, for rounds that older versions acted."""

    row_columns: ClassVar[tuple[str, ...]] = ("action", "log_probability")
    later: ClassVar[tuple[str, ...]] = (*NetworkSettings.later, "normalize_observation", "normalize_reward")

    name: Literal["impala"] = Field("impala", description="The algorithm.", json_schema_extra=at(0))
    learning_rate: float = Field(1e-3, gt=0, description="Adam's step size at the start.", json_schema_extra=at(5))
    final_learning_rate: float = Field(
        0.0, ge=0, description="Step size after anneal_rounds rounds.", json_schema_extra=at(6)
    )
    anneal_rounds: int = Field(
        0, ge=0, description="Rounds over which the step size changes linearly; 0 keeps it.", json_schema_extra=at(7)
    )
    discount: float = Field(0.99, ge=0, le=1, description="Gamma.", json_schema_extra=at(8))
    trace_decay: float = Field(1.0, ge=0, le=1, description="Lambda of V-trace.", json_schema_extra=at(9))
    rho_limit: float = Field(
        1.0, gt=0, description="Rho-bar: largest weight of a row's own correction.", json_schema_extra=at(10)
    )
    c_limit: float = Field(
        1.0, gt=0, description="C-bar: largest weight of what is passed back a step.", json_schema_extra=at(11)
    )
    entropy_weight: float = Field(0.01, ge=0, description="Weight of the entropy bonus.", json_schema_extra=at(12))
    value_weight: float = Field(0.5, ge=0, description="Weight of the value error.", json_schema_extra=at(13))
    minibatches: int = Field(4, ge=1, description="Minibatches of a round.", json_schema_extra=at(14))
    gradient_norm: float = Field(0.5, gt=0, description="Largest norm of the gradient.", json_schema_extra=at(15))
    reward_scale: float = Field(1.0, gt=0, description="Factor on rewards while learning.", json_schema_extra=at(16))
    initial_log_std: float = Field(
        0.0, description="Log standard deviation at the start, continuous actions.", json_schema_extra=at(17)
    )
    normalize_observation: bool = Field(
        False, description="Observations by their running mean and deviation.", json_schema_extra=at(18)
    )
    normalize_reward: bool = Field(
        False, description="Rewards by the running deviation of their discounted sums.", json_schema_extra=at(19)
    )

    def check_round(self, rows: int) -> None:
        """Refuse more minibatches than rows, and images whose pixels would be normalised one by one."""
        check_pixels(self.network, normalized=self.normalize_observation)
        check_minibatches(self.minibatches, rows, self.row_steps)
