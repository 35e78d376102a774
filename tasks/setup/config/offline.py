"""Settings of algorithms that learn from stored rows alone: behaviour cloning, IQL and TD3+BC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from penstock.tasks.setup.config.algorithm_base import (
    AnyFeatures,
    AnyNetwork,
    EncodedSettings,
    EncoderSettings,
    check_bounds,
    check_burn_in,
    check_netlist,
    check_pixels,
    implemented_by,
)
from penstock.tasks.setup.config.hyperparameters import (
    Activation,
    AdamEpsilon,
    BoundedMean,
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

if TYPE_CHECKING:
    from penstock.native import EnvironmentSpec


SequenceMinibatchRows: TypeAlias = Annotated[
    int, Field(ge=1, description="Rows of a minibatch; with a recurrent network its steps, in whole sequences.")
]


class LikelihoodSettings(EncoderSettings):
    """Settings of algorithms whose policy gives stored actions a likelihood: of vectors, a normal distribution's."""

    perceptron_takes_images: ClassVar[bool] = True
    omitted_when_default: ClassVar[tuple[str, ...]] = (
        "network",
        "features",
        "activation",
        "adam_epsilon",
        "bounded_mean",
        "sequence_steps",
        "burn_in_steps",
    )

    network: AnyNetwork = "mlp"  # type: ignore[assignment]
    features: AnyFeatures = 256
    activation: Activation = "tanh"
    adam_epsilon: AdamEpsilon = 1e-5
    bounded_mean: BoundedMean = False
    sequence_steps: int = Field(
        16,
        ge=1,
        description="Steps of a recurrent network's sequence, which is a row; rounds of the runs that are read are "
        "whole numbers of sequences.",
    )
    burn_in_steps: int = Field(
        0,
        ge=0,
        description="Steps before a sequence that a recurrent network runs without a gradient, from an empty memory; "
        "at most sequence_steps.",
    )

    @property
    def row_steps(self) -> int:
        """Return the steps of an environment in a training row."""
        return self.sequence_steps if self.network == "recurrent" else 1

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse what the network does not support, and a mean within bounds where there are none."""
        super().check_environment(environment)
        check_netlist(self.network, environment)
        if self.bounded_mean:
            check_bounds("algorithm.bounded_mean = true", environment)

    @model_validator(mode="after")
    def _burns_in(self) -> Self:
        check_burn_in(self.network, self.burn_in_steps, self.sequence_steps)
        return self


@implemented_by("penstock.tasks.model.algorithms.behaviour_cloning:BehaviourCloning")
class BehaviourCloningSettings(LikelihoodSettings):
    """Behaviour cloning: maximum likelihood of the stored actions."""

    name: Literal["behaviour_cloning"] = Field("behaviour_cloning", description="The algorithm.")
    hidden: Hidden = (64, 64)
    learning_rate: LearningRate = 1e-3
    minibatch_rows: SequenceMinibatchRows = 512
    epochs: int = Field(1, ge=1, description="Passes over the rows of a round.")
    gradient_norm: float = Field(1.0, gt=0, description="Largest gradient norm.")


@implemented_by("penstock.tasks.model.algorithms.iql:IQL")
class IQLSettings(LikelihoodSettings):
    """Implicit Q-learning: improves on the stored policy by the stored rewards."""

    omitted_when_default: ClassVar[tuple[str, ...]] = (*LikelihoodSettings.omitted_when_default, "anneal_minibatches")

    name: Literal["iql"] = Field("iql", description="The algorithm.")
    hidden: Hidden = (64, 64)
    learning_rate: LearningRate = 3e-4
    anneal_minibatches: int = Field(
        0, ge=0, description="Minibatches over which the policy's learning rate falls to 0 by a cosine; 0 keeps it."
    )
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
    minibatch_rows: SequenceMinibatchRows = 512
    epochs: int = Field(1, ge=1, description="Passes over the rows of a round.")


@implemented_by("penstock.tasks.model.algorithms.td3_bc:TD3BC")
class TD3BCSettings(EncodedSettings):
    """TD3+BC: a deterministic actor that maximises values and clones the stored actions."""

    action_kinds: ClassVar[tuple[str, ...]] = ("box",)
    takes_any_action: ClassVar[str] = "iql"
    omitted_when_default: ClassVar[tuple[str, ...]] = ("activation", "moment_rounds")
    burn_in_steps: ClassVar[int] = 0
    """A setting of SAC and TD3, which may have a memory."""
    random_steps: ClassVar[int] = 0
    """A setting of SAC and TD3, which act while they learn."""

    name: Literal["td3_bc"] = Field("td3_bc", description="The algorithm.")
    hidden: Hidden = (256, 256)
    activation: Activation = "relu"
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
    moment_rounds: int = Field(
        0,
        ge=0,
        description="Rounds at the start that only give the mean and deviation, which then stay; as many as one pass "
        "over the shards has. 0: they follow the rows that were learned.",
    )
    reward_scale: RewardScale = 1.0
    minibatch_rows: MinibatchRows = 256
    epochs: Epochs = 1

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse actions without bounds: the actor's lie between them."""
        super().check_environment(environment)
        check_bounds(f"algorithm.name = '{self.name}'", environment, "choose iql")

    @model_validator(mode="after")
    def _normalises(self) -> TD3BCSettings:
        if self.moment_rounds and not self.normalize_observation:
            raise ValueError(
                f"moment_rounds = {self.moment_rounds}: normalize_observation = false needs no "
                f"moments, expected 0; leave one of them out"
            )
        check_pixels(self.network, normalized=self.normalize_observation)
        return self
