"""Settings of PPO."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.algorithm_settings.base import check_minibatches
from tasks.algorithm_settings.network import NetworkSettings, check_pixels
from tasks.settings import at


class PPOSettings(NetworkSettings):
    """Proximal policy optimisation."""

    row_columns: ClassVar[tuple[str, ...]] = ("action", "log_probability")
    later: ClassVar[tuple[str, ...]] = (
        *NetworkSettings.later,
        "normalize_observation",
        "normalize_reward",
        "shared_network",
        "value_weight",
    )

    name: Literal["ppo"] = Field("ppo", description="The algorithm.", json_schema_extra=at(0))
    learning_rate: float = Field(3e-4, gt=0, description="Adam's step size at the start.", json_schema_extra=at(5))
    final_learning_rate: float = Field(
        0.0, ge=0, description="Step size after anneal_rounds rounds.", json_schema_extra=at(6)
    )
    anneal_rounds: int = Field(
        0, ge=0, description="Rounds over which the step size changes linearly; 0 keeps it.", json_schema_extra=at(7)
    )
    discount: float = Field(0.99, ge=0, le=1, description="Gamma.", json_schema_extra=at(8))
    trace_decay: float = Field(
        0.95, ge=0, le=1, description="Lambda of the advantage estimate.", json_schema_extra=at(9)
    )
    clip_range: float = Field(
        0.2, gt=0, description="Largest change of the probability ratio.", json_schema_extra=at(10)
    )
    entropy_weight: float = Field(0.0, ge=0, description="Weight of the entropy bonus.", json_schema_extra=at(11))
    epochs: int = Field(4, ge=1, description="Passes over a round's rows.", json_schema_extra=at(12))
    minibatches: int = Field(8, ge=1, description="Minibatches a pass.", json_schema_extra=at(13))
    gradient_norm: float = Field(0.5, gt=0, description="Largest gradient norm of a group.", json_schema_extra=at(14))
    reward_scale: float = Field(1.0, gt=0, description="Factor on rewards while learning.", json_schema_extra=at(15))
    initial_log_std: float = Field(
        0.0, description="Log standard deviation at the start, continuous actions.", json_schema_extra=at(16)
    )
    normalize_observation: bool = Field(
        False, description="Observations by their running mean and deviation.", json_schema_extra=at(17)
    )
    normalize_reward: bool = Field(
        False, description="Rewards by the running deviation of their discounted sums.", json_schema_extra=at(18)
    )

    shared_network: bool = Field(
        False,
        description="One network for policy and value, which share all but their outputs: half the work with images.",
        json_schema_extra=at(19),
    )
    value_weight: float = Field(
        0.5, gt=0, description="Weight of the value's error in a shared network.", json_schema_extra=at(20)
    )

    def check_round(self, rows: int) -> None:
        """Refuse more minibatches than rows, and images whose pixels would be normalised one by one."""
        check_pixels(self.network, normalized=self.normalize_observation)
        check_minibatches(self.minibatches, rows, self.row_steps)
