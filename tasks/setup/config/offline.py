"""Settings of algorithms that learn from stored rows alone: behaviour cloning, IQL and TD3+BC."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from penstock.tasks.setup.config.algorithm_base import (
    EncodedSettings,
    check_pixels,
    implemented_by,
)
from penstock.tasks.setup.config.hyperparameters import (
    Discount,
    Epochs,
    ExplorationNoise,
    Hidden,
    LearningRate,
    MinibatchRows,
    PolicyDelay,
    RewardScale,
    SmoothingLimit,
    SmoothingNoise,
    TargetShare,
)


@implemented_by("penstock.tasks.model.algorithms.behaviour_cloning:BehaviourCloning")
class BehaviourCloningSettings(EncodedSettings):
    """Behaviour cloning: maximum likelihood of the stored actions."""

    perceptron_takes_images: ClassVar[bool] = True
    omitted_when_default: ClassVar[tuple[str, ...]] = ("network", "features")

    name: Literal["behaviour_cloning"] = Field("behaviour_cloning", description="The algorithm.")
    hidden: Hidden = (64, 64)
    learning_rate: LearningRate = 1e-3
    minibatch_rows: MinibatchRows = 512
    epochs: int = Field(1, ge=1, description="Passes over the rows of a round.")
    gradient_norm: float = Field(1.0, gt=0, description="Largest gradient norm.")


@implemented_by("penstock.tasks.model.algorithms.iql:IQL")
class IQLSettings(EncodedSettings):
    """Implicit Q-learning: improves on the stored policy by the stored rewards."""

    perceptron_takes_images: ClassVar[bool] = True
    omitted_when_default: ClassVar[tuple[str, ...]] = ("network", "features")

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


@implemented_by("penstock.tasks.model.algorithms.td3_bc:TD3BC")
class TD3BCSettings(EncodedSettings):
    """TD3+BC: a deterministic actor that maximises values and clones the stored actions."""

    action_kinds: ClassVar[tuple[str, ...]] = ("box",)

    name: Literal["td3_bc"] = Field("td3_bc", description="The algorithm.")
    hidden: Hidden = (256, 256)
    learning_rate: LearningRate = 3e-4
    discount: Discount = 0.99
    alpha: float = Field(2.5, gt=0, description="Weight of values against cloning; small values clone.")
    target_share: TargetShare = 0.005
    exploration_noise: ExplorationNoise = 0.1
    smoothing_noise: SmoothingNoise = 0.2
    smoothing_limit: SmoothingLimit = 0.5
    policy_delay: PolicyDelay = 2
    normalize_observation: bool = Field(
        True, description="Normalise observations by the mean and deviation of the rows that were learned so far."
    )
    reward_scale: RewardScale = 1.0
    minibatch_rows: MinibatchRows = 256
    epochs: Epochs = 1

    def check_round(self, rows: int) -> None:  # noqa: ARG002  (any number of rows will do)
        """Refuse normalised images."""
        check_pixels(self.network, normalized=self.normalize_observation)
