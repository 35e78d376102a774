"""Settings of on-policy algorithms: PPO, IMPALA, MAPPO and IPPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from penstock.tasks.setup.config.algorithm_base import (
    AlgorithmSettings,
    NetworkSettings,
    check_bounds,
    check_entropy_weight,
    check_images,
    check_minibatches,
    check_pixels,
    check_schedule,
    implemented_by,
)
from penstock.tasks.setup.config.hyperparameters import (
    AnnealedLearningRate,
    AnnealRounds,
    Cells,
    ClipRange,
    Discount,
    EntropyWeight,
    EpochMinibatches,
    Epochs,
    FinalEntropyWeight,
    FinalLearningRate,
    GradientNorm,
    GroupGradientNorm,
    Hidden,
    InitialLogStd,
    NormalizeObservation,
    NormalizeReward,
    RewardScale,
    RoundMinibatches,
    TraceDecay,
)

if TYPE_CHECKING:
    from penstock.native import EnvironmentSpec


@implemented_by("penstock.tasks.model.algorithms.ppo:PPO")
class PPOSettings(NetworkSettings):
    """Proximal policy optimisation."""

    row_columns: ClassVar[tuple[str, ...]] = ("action", "log_probability")
    omitted_when_default: ClassVar[tuple[str, ...]] = (
        *NetworkSettings.omitted_when_default,
        "normalize_observation",
        "normalize_reward",
        "shared_network",
        "value_weight",
        "actions",
        "reward_normalization",
        "advantage_normalization",
        "value_clip_range",
        "target_kl",
        "joint_gradient_norm",
        "final_entropy_weight",
    )

    name: Literal["ppo"] = Field("ppo", description="The algorithm.")
    learning_rate: AnnealedLearningRate = 3e-4
    final_learning_rate: FinalLearningRate = 0.0
    anneal_rounds: AnnealRounds = 0
    discount: Discount = 0.99
    trace_decay: TraceDecay = 0.95
    clip_range: ClipRange = 0.2
    entropy_weight: EntropyWeight = 0.0
    epochs: Epochs = 4
    minibatches: EpochMinibatches = 8
    gradient_norm: GroupGradientNorm = 0.5
    reward_scale: RewardScale = 1.0
    initial_log_std: InitialLogStd = 0.0
    normalize_observation: NormalizeObservation = False
    normalize_reward: NormalizeReward = False

    shared_network: bool = Field(
        False,
        description="Policy and value share one network except for their outputs: half the work with images.",
    )
    value_weight: float = Field(
        0.5, gt=0, description="Weight of the value's error in a shared network, or with joint_gradient_norm."
    )
    actions: Literal["sampled", "clipped", "squashed"] = Field(
        "sampled",
        description="How vectors reach the environment: as sampled, clipped to its bounds, or squashed into them by "
        "tanh.",
    )
    reward_normalization: Literal["round", "running"] = Field(
        "round",
        description="With normalize_reward, discounted sums begin with each round, or run on from round to round.",
    )
    advantage_normalization: Literal["round", "minibatch", "none"] = Field(
        "round", description="Advantages are normalised over a round, over each minibatch, or not at all."
    )
    value_clip_range: float = Field(
        0.0, ge=0, description="Largest change of a value in a round that its error rewards; 0 does not clip."
    )
    target_kl: float = Field(
        0.0, ge=0, description="Largest divergence from the acting policy, after which no epoch follows; 0: no limit."
    )
    joint_gradient_norm: bool = Field(
        False, description="Limit one norm of the gradients of policy and value, which then have one optimizer."
    )
    final_entropy_weight: FinalEntropyWeight = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the algorithm's columns, and `sampled_action` if the environment takes another one."""
        return super().columns if self.actions == "sampled" else (*super().columns, "sampled_action")

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse to bring actions within bounds where there are none."""
        super().check_environment(environment)
        if self.actions != "sampled":
            check_bounds(
                f"algorithm.actions = '{self.actions}'",
                environment,
                "choose sampled",
                scales=self.actions == "squashed",
            )

    def check_round(self, rows: int) -> None:
        """Refuse more minibatches than rows, normalised images, and schedules whose end no round reaches."""
        check_pixels(self.network, normalized=self.normalize_observation)
        check_entropy_weight(self.final_entropy_weight, self.anneal_rounds)
        check_minibatches(self.minibatches, rows, self.row_steps)
        check_schedule(self.anneal_rounds, 1 if self.target_kl else self.epochs * self.minibatches)


@implemented_by("penstock.tasks.model.algorithms.impala:IMPALA")
class IMPALASettings(NetworkSettings):
    """IMPALA: an actor-critic with V-trace, for rounds acted with older versions."""

    row_columns: ClassVar[tuple[str, ...]] = ("action", "log_probability")
    omitted_when_default: ClassVar[tuple[str, ...]] = (
        *NetworkSettings.omitted_when_default,
        "normalize_observation",
        "normalize_reward",
        "final_entropy_weight",
    )

    name: Literal["impala"] = Field("impala", description="The algorithm.")
    learning_rate: AnnealedLearningRate = 1e-3
    final_learning_rate: FinalLearningRate = 0.0
    anneal_rounds: AnnealRounds = 0
    discount: Discount = 0.99
    trace_decay: float = Field(1.0, ge=0, le=1, description="Lambda of V-trace.")
    rho_limit: float = Field(1.0, gt=0, description="Rho-bar: largest weight of a row's own correction.")
    c_limit: float = Field(1.0, gt=0, description="C-bar: largest weight of a correction that is passed back one step.")
    entropy_weight: EntropyWeight = 0.01
    value_weight: float = Field(0.5, ge=0, description="Weight of the value error.")
    minibatches: RoundMinibatches = 4
    gradient_norm: GradientNorm = 0.5
    reward_scale: RewardScale = 1.0
    initial_log_std: InitialLogStd = 0.0
    normalize_observation: NormalizeObservation = False
    normalize_reward: NormalizeReward = False
    final_entropy_weight: FinalEntropyWeight = None

    def check_round(self, rows: int) -> None:
        """Refuse more minibatches than rows, normalised images, and schedules whose end no round reaches."""
        check_pixels(self.network, normalized=self.normalize_observation)
        check_entropy_weight(self.final_entropy_weight, self.anneal_rounds)
        check_minibatches(self.minibatches, rows, self.row_steps)
        check_schedule(self.anneal_rounds, self.minibatches)


class MultiAgentSettings(AlgorithmSettings):
    """PPO for several agents."""

    row_columns: ClassVar[tuple[str, ...]] = ("action", "log_probability")
    several_agents: ClassVar[bool | None] = True
    central_critic: ClassVar[bool]
    """True if the critic gets all agents' observations (MAPPO), False if it gets one agent's (IPPO)."""
    omitted_when_default: ClassVar[tuple[str, ...]] = (
        "shared_parameters",
        "normalize_observation",
        "normalize_reward",
        "normalize_value",
        "value_decay",
        "huber_delta",
        "value_clip_range",
        "network",
        "features",
        "sequence_steps",
        "value_after_leaving",
        "final_entropy_weight",
        "cells",
    )

    shared_parameters: bool = Field(
        True,
        description="All agents share networks; false gives each its own, for the policy agents or one learner.",
    )
    agent_id: bool = Field(True, description="Give shared networks the agent's id.")
    team_reward: bool = Field(
        True,
        description="Give every agent the mean of all agents' rewards instead of its own reward.",
    )
    hidden: Hidden = (64, 64)
    learning_rate: AnnealedLearningRate = 5e-4
    final_learning_rate: FinalLearningRate = 0.0
    anneal_rounds: AnnealRounds = 0
    discount: Discount = 0.99
    trace_decay: TraceDecay = 0.95
    clip_range: ClipRange = 0.2
    entropy_weight: EntropyWeight = 0.01
    epochs: Epochs = 10
    minibatches: EpochMinibatches = 1
    gradient_norm: GroupGradientNorm = 10.0
    reward_scale: RewardScale = 1.0
    initial_log_std: InitialLogStd = 0.0
    normalize_observation: NormalizeObservation = False
    normalize_reward: NormalizeReward = False

    normalize_value: bool = Field(False, description="Let critics learn targets of mean 0 and deviation 1 (ValueNorm).")
    value_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Factor on the weight of earlier rounds in the targets' moments, each round; 1 weighs all alike.",
    )
    huber_delta: float = Field(
        0.0, ge=0, description="Error of a value, in the critic's units, beyond which its loss is linear; 0: nowhere."
    )
    value_clip_range: float = Field(
        0.0,
        ge=0,
        description="Largest change of a value, in the critic's units, that lowers a round's loss; 0: any.",
    )
    network: Literal["mlp", "leaves", "recurrent"] = Field(
        "mlp",
        description="Encoder before the hidden layers: none (mlp), convolutions for the images of structured "
        "observations (leaves), or a memory for each agent (recurrent).",
    )
    features: int = Field(64, ge=1, description="Features of each image, or numbers of a memory; a plain mlp has none.")
    sequence_steps: int = Field(
        16,
        ge=1,
        description="Steps of a recurrent network's training sequence; a round is a whole number of sequences.",
    )
    cells: Cells = Field({})
    value_after_leaving: bool = Field(
        True,
        description="Critics learn the value of what follows after an agent has left; false: its return ends there.",
    )
    final_entropy_weight: FinalEntropyWeight = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the algorithm's columns, and `memory` if the networks are recurrent."""
        return (*self.row_columns, "memory") if self.network == "recurrent" else self.row_columns

    @property
    def row_steps(self) -> int:
        """Return the steps of an environment in a training row."""
        return self.sequence_steps if self.network == "recurrent" else 1

    @property
    def parts_agents(self) -> bool:
        """Return whether every agent has networks of its own."""
        return not self.shared_parameters

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse observations that the network does not support."""
        super().check_environment(environment)
        check_images(self.network, environment, cells=self.cells)

    def check_round(self, rows: int) -> None:
        """Refuse more minibatches than rows, normalised images, and schedules whose end no round reaches."""
        check_pixels(self.network, normalized=self.normalize_observation)
        check_entropy_weight(self.final_entropy_weight, self.anneal_rounds)
        check_minibatches(self.minibatches, rows, self.row_steps)
        check_schedule(self.anneal_rounds, self.epochs * self.minibatches)


@implemented_by("penstock.tasks.model.algorithms.mappo:MAPPO")
class MAPPOSettings(MultiAgentSettings):
    """MAPPO: several agents, and one critic that gets all agents' observations."""

    central_critic: ClassVar[bool] = True

    name: Literal["mappo"] = Field("mappo", description="The algorithm.")


@implemented_by("penstock.tasks.model.algorithms.mappo:MAPPO")
class IPPOSettings(MultiAgentSettings):
    """IPPO: several agents, each learning from its own observation alone."""

    central_critic: ClassVar[bool] = False

    name: Literal["ippo"] = Field("ippo", description="The algorithm.")
