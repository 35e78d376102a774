"""Settings of algorithms that learn from stored rows alone: behaviour cloning and IQL."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings, implemented_by
from penstock.tasks.setup.config.hyperparameters import (
    Discount,
    Hidden,
    LearningRate,
    MinibatchRows,
    RewardScale,
)


@implemented_by("penstock.tasks.model.algorithms.behaviour_cloning:BehaviourCloning")
class BehaviourCloningSettings(AlgorithmSettings):
    """Behaviour cloning: maximum likelihood of the stored actions."""

    name: Literal["behaviour_cloning"] = Field("behaviour_cloning", description="The algorithm.")
    hidden: Hidden = (64, 64)
    learning_rate: LearningRate = 1e-3
    minibatch_rows: MinibatchRows = 512
    epochs: int = Field(1, ge=1, description="Passes over the rows of a round.")
    gradient_norm: float = Field(1.0, gt=0, description="Largest gradient norm.")


@implemented_by("penstock.tasks.model.algorithms.iql:IQL")
class IQLSettings(AlgorithmSettings):
    """Implicit Q-learning: improves on the stored policy by the stored rewards."""

    name: Literal["iql"] = Field("iql", description="The algorithm.")
    hidden: Hidden = (64, 64)
    learning_rate: LearningRate = 3e-4
    discount: Discount = 0.99
    expectile: float = Field(
        0.7,
        gt=0,
        lt=1,
        description="Tau: 0.5 estimates the mean of stored actions' values, near 1 the maximum.",
    )
    inverse_temperature: float = Field(3.0, ge=0, description="Beta: how strongly advantages weight actions; 0 clones.")
    weight_limit: float = Field(100.0, gt=0, description="Largest weight of a row.")
    target_rate: float = Field(
        0.005, gt=0, le=1, description="Share of the critic that is mixed into its target after a minibatch."
    )
    reward_scale: RewardScale = 1.0
    minibatch_rows: MinibatchRows = 512
    epochs: int = Field(1, ge=1, description="Passes over the rows of a round.")
