"""Settings of MAPPO, and what they share with those of IPPO."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.algorithm_settings.base import AlgorithmSettings, Widths, check_minibatches
from tasks.settings import at


class SeveralAgentsSettings(AlgorithmSettings):
    """PPO for several agents with shared parameters."""

    row_columns: ClassVar[tuple[str, ...]] = ("action", "log_probability")
    several_agents: ClassVar[bool | None] = True
    later: ClassVar[tuple[str, ...]] = ("normalize_observation", "normalize_reward")

    agent_id: bool = Field(
        True, description="Whether the networks are told which agent they are.", json_schema_extra=at(1)
    )
    team_reward: bool = Field(
        True,
        description="Whether every agent is paid the mean of all agents' rewards, or its own.",
        json_schema_extra=at(2),
    )
    hidden: Widths = Field((64, 64), description="Widths of the hidden layers.", json_schema_extra=at(3))
    learning_rate: float = Field(5e-4, gt=0, description="Adam's step size at the start.", json_schema_extra=at(4))
    final_learning_rate: float = Field(
        0.0, ge=0, description="Step size after anneal_rounds rounds.", json_schema_extra=at(5)
    )
    anneal_rounds: int = Field(
        0, ge=0, description="Rounds over which the step size changes linearly; 0 keeps it.", json_schema_extra=at(6)
    )
    discount: float = Field(0.99, ge=0, le=1, description="Gamma.", json_schema_extra=at(7))
    trace_decay: float = Field(
        0.95, ge=0, le=1, description="Lambda of the advantage estimate.", json_schema_extra=at(8)
    )
    clip_range: float = Field(
        0.2, gt=0, description="Largest change of the probability ratio.", json_schema_extra=at(9)
    )
    entropy_weight: float = Field(0.01, ge=0, description="Weight of the entropy bonus.", json_schema_extra=at(10))
    epochs: int = Field(10, ge=1, description="Passes over a round's rows.", json_schema_extra=at(11))
    minibatches: int = Field(1, ge=1, description="Minibatches a pass.", json_schema_extra=at(12))
    gradient_norm: float = Field(10.0, gt=0, description="Largest gradient norm of a group.", json_schema_extra=at(13))
    reward_scale: float = Field(1.0, gt=0, description="Factor on rewards while learning.", json_schema_extra=at(14))
    initial_log_std: float = Field(
        0.0, description="Log standard deviation at the start, continuous actions.", json_schema_extra=at(15)
    )
    normalize_observation: bool = Field(
        False, description="Observations by their running mean and deviation.", json_schema_extra=at(16)
    )
    normalize_reward: bool = Field(
        False, description="Rewards by the running deviation of their discounted sums.", json_schema_extra=at(17)
    )

    def check_round(self, rows: int) -> None:
        """Refuse more minibatches than rows."""
        check_minibatches(self.minibatches, rows)


class MAPPOSettings(SeveralAgentsSettings):
    """MAPPO: several agents, one critic that sees what all of them observe."""

    name: Literal["mappo"] = Field("mappo", description="The algorithm.", json_schema_extra=at(0))
