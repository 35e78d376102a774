"""Settings of deep Q-learning."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.algorithm_settings.base import AlgorithmSettings, Widths, check_window
from tasks.settings import at


class DQNSettings(AlgorithmSettings):
    """DQN: values of choices, learned from rows that were drawn from a window of the newest rounds."""

    action_kinds: ClassVar[tuple[str, ...]] = ("discrete",)
    learns_from_window: ClassVar[bool] = True
    later: ClassVar[tuple[str, ...]] = ("final_learning_rate", "anneal_rounds")

    name: Literal["dqn"] = Field("dqn", description="The algorithm.", json_schema_extra=at(0))
    hidden: Widths = Field((120, 84), description="Widths of the hidden layers.", json_schema_extra=at(1))
    learning_rate: float = Field(2.5e-4, gt=0, description="Adam's step size at the start.", json_schema_extra=at(2))
    final_learning_rate: float = Field(
        0.0, ge=0, description="Step size after anneal_rounds rounds.", json_schema_extra=at(3)
    )
    anneal_rounds: int = Field(
        0,
        ge=0,
        description="Rounds of learning over which the step size changes linearly; 0 keeps it.",
        json_schema_extra=at(4),
    )
    discount: float = Field(0.99, ge=0, le=1, description="Gamma.", json_schema_extra=at(5))
    window_rows: int = Field(
        10_000, ge=1, description="Steps that are learned from, the newest whole rounds.", json_schema_extra=at(6)
    )
    warm_up_rows: int = Field(
        1_000, ge=1, description="Steps in the window before learning begins.", json_schema_extra=at(7)
    )
    minibatch_rows: int = Field(128, ge=1, description="Rows of a minibatch.", json_schema_extra=at(8))
    minibatches: int = Field(10, ge=1, description="Minibatches of a round.", json_schema_extra=at(9))
    target_minibatches: int = Field(
        50, ge=1, description="Minibatches after which the target network is renewed.", json_schema_extra=at(10)
    )
    return_steps: int = Field(
        1, ge=1, description="Steps whose rewards count before the bootstrap.", json_schema_extra=at(11)
    )
    double: bool = Field(
        True, description="Whether the network chooses and its target judges.", json_schema_extra=at(12)
    )
    dueling: bool = Field(
        True, description="Whether the network tells a state's value from its choices'.", json_schema_extra=at(13)
    )
    huber: bool = Field(
        False, description="Errors beyond 1 count linearly; for rewards of -1 to 1.", json_schema_extra=at(14)
    )
    priority_exponent: float = Field(
        0.0, ge=0, description="Alpha: how strongly errors make a row likelier; 0 is uniform.", json_schema_extra=at(15)
    )
    priority_correction: float = Field(
        0.4, ge=0, le=1, description="Beta: how strongly weights undo that.", json_schema_extra=at(16)
    )
    first_epsilon: float = Field(1.0, ge=0, le=1, description="Exploration at the start.", json_schema_extra=at(17))
    last_epsilon: float = Field(0.05, ge=0, le=1, description="Exploration in the end.", json_schema_extra=at(18))
    epsilon_minibatches: int = Field(
        25_000, ge=1, description="Minibatches over which exploration falls linearly.", json_schema_extra=at(19)
    )
    gradient_norm: float = Field(10.0, gt=0, description="Largest norm of the gradient.", json_schema_extra=at(20))

    def check_round(self, rows: int) -> None:
        """Refuse a round that the window can't hold."""
        check_window(self.window_rows, self.warm_up_rows, rows)
