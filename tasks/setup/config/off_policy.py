"""Settings of off-policy algorithms: DQN, QR-DQN, SAC and TD3.

Two base classes have what algorithms of one kind of actions share, and each algorithm adds its own below. Window and
memory are the same for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from penstock.tasks.setup.config.algorithm_base import (
    EncoderSettings,
    check_bounds,
    check_burn_in,
    check_pixels,
    check_schedule,
    check_window,
    implemented_by,
)
from penstock.tasks.setup.config.hyperparameters import (
    AnnealedLearningRate,
    CorrectionMinibatches,
    Discount,
    EpsilonMinibatches,
    ExplorationNoise,
    FinalLearningRate,
    FirstEpsilon,
    GradientNorm,
    Hidden,
    LastEpsilon,
    LearningAnnealRounds,
    LearningRate,
    MinibatchRows,
    NormalizeObservation,
    PolicyDelay,
    PriorityCorrection,
    PriorityExponent,
    RandomSteps,
    ReturnsAcrossRounds,
    ReturnSteps,
    RoundMinibatches,
    SmoothingLimit,
    SmoothingNoise,
    TargetMinibatches,
    TargetShare,
    WarmUpRows,
    WindowRows,
)

if TYPE_CHECKING:
    from penstock.native import EnvironmentSpec


class WindowSettings(EncoderSettings):
    """Settings of algorithms that learn from rows drawn from a window of the newest rounds; they may have a memory."""

    learns_from_window: ClassVar[bool] = True

    discount: Discount = 0.99
    window_rows: WindowRows = 10_000
    warm_up_rows: WarmUpRows = 1_000
    minibatch_rows: MinibatchRows = 128
    minibatches: RoundMinibatches = 10
    sequence_steps: int = Field(
        16,
        ge=1,
        description="Steps of a recurrent network's replayed sequence, which is a row; a round is a whole number of "
        "sequences.",
    )
    burn_in_steps: int = Field(
        0,
        ge=0,
        description="Steps before a replayed sequence that a recurrent network runs without a gradient, from the "
        "stored memory; at most sequence_steps.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the algorithm's columns, and `memory` if the network is recurrent."""
        return (*self.row_columns, "memory") if self.network == "recurrent" else self.row_columns

    @property
    def row_steps(self) -> int:
        """Return the steps of an environment in a training row."""
        return self.sequence_steps if self.network == "recurrent" else 1

    def training_rows(self, steps: int) -> int:
        """Return the training rows that have at least so many steps."""
        return -(-steps // self.row_steps)

    def check_round(self, rows: int) -> None:
        """Refuse a window that is too small for a round or for the warm-up, and a burn-in that can't be."""
        check_burn_in(self.network, self.burn_in_steps, self.sequence_steps)
        check_window(self.window_rows, self.warm_up_rows, rows * self.row_steps)


class ChoiceSettings(WindowSettings):
    """Settings of algorithms that learn values of choices."""

    action_kinds: ClassVar[tuple[str, ...]] = ("discrete",)
    omitted_when_default: ClassVar[tuple[str, ...]] = ("sequence_steps", "burn_in_steps", "value_rescaling")

    value_rescaling: bool = Field(
        False, description="Learn h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x of values, for rewards of any scale."
    )
    hidden: Hidden = (120, 84)
    learning_rate: AnnealedLearningRate = 2.5e-4
    final_learning_rate: FinalLearningRate = 0.0
    anneal_rounds: LearningAnnealRounds = 0
    target_minibatches: TargetMinibatches = 50
    return_steps: ReturnSteps = 1
    returns_across_rounds: ReturnsAcrossRounds = False
    double: bool = Field(True, description="Double: the network chooses the next action, its target evaluates it.")
    dueling: bool = Field(
        True, description="Dueling: separate outputs for the value of a state and the advantages of its actions."
    )
    priority_exponent: PriorityExponent = 0.0
    priority_correction: PriorityCorrection = 0.4
    correction_minibatches: CorrectionMinibatches = 0
    first_epsilon: FirstEpsilon = 1.0
    last_epsilon: LastEpsilon = 0.05
    epsilon_minibatches: EpsilonMinibatches = 25_000
    gradient_norm: GradientNorm = 10.0

    def check_round(self, rows: int) -> None:
        """Refuse a window that is too small, and settings of sequences that have no effect or none together."""
        if self.network == "recurrent" and self.returns_across_rounds:
            raise ValueError(
                "algorithm.returns_across_rounds = true: with network = 'recurrent' returns end with their sequence; "
                "leave it out"
            )
        check_schedule(self.anneal_rounds, self.minibatches)
        super().check_round(rows)


@implemented_by("penstock.tasks.model.algorithms.dqn:DQN")
class DQNSettings(ChoiceSettings):
    """DQN: values of choices, learned from rows drawn from a window of the newest rounds."""

    omitted_when_default: ClassVar[tuple[str, ...]] = (
        "network",
        "features",
        "final_learning_rate",
        "anneal_rounds",
        "correction_minibatches",
        "returns_across_rounds",
        *ChoiceSettings.omitted_when_default,
    )

    name: Literal["dqn"] = Field("dqn", description="The algorithm.")
    huber: bool = Field(False, description="Huber loss: errors beyond 1 count linearly; suits rewards of -1 to 1.")


@implemented_by("penstock.tasks.model.algorithms.qr_dqn:QRDQN")
class QRDQNSettings(ChoiceSettings):
    """QR-DQN: quantiles of choices' returns, learned from rows drawn from a window of the newest rounds."""

    name: Literal["qr_dqn"] = Field("qr_dqn", description="The algorithm.")
    quantiles: int = Field(50, ge=1, description="Quantiles of a choice's return.")
    huber_limit: float = Field(1.0, gt=0, description="Kappa: errors beyond it count linearly.")
    noisy_scale: float = Field(
        0.0,
        ge=0,
        description="Initial scale of noisy linear layers, which explore in place of epsilon (0.5 in the paper); 0: "
        "none.",
    )

    def check_round(self, rows: int) -> None:
        """Refuse noisy layers behind a memory, and what all algorithms of this kind refuse."""
        if self.noisy_scale and self.network == "recurrent":
            raise ValueError(
                f"algorithm.noisy_scale = {self.noisy_scale}: network = 'recurrent' has no noisy layers; choose "
                f"another network, or explore by epsilon"
            )
        super().check_round(rows)


class VectorSettings(WindowSettings):
    """Settings of algorithms that learn an actor of vectors and twin critics."""

    action_kinds: ClassVar[tuple[str, ...]] = ("box",)
    omitted_when_default: ClassVar[tuple[str, ...]] = ("sequence_steps", "burn_in_steps")
    activation: ClassVar[str] = "relu"
    """A setting of TD3+BC alone."""
    reward_scale: ClassVar[float] = 1.0
    """A setting of TD3+BC alone."""

    hidden: Hidden = (256, 256)
    learning_rate: LearningRate = 3e-4
    window_rows: WindowRows = 1_000_000
    minibatch_rows: MinibatchRows = 256
    minibatches: RoundMinibatches = 64
    target_share: TargetShare = 0.005
    normalize_observation: NormalizeObservation = False

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse actions without bounds: the actor's lie between them."""
        super().check_environment(environment)
        check_bounds(f"algorithm.name = '{self.name}'", environment, "choose ppo")

    def check_round(self, rows: int) -> None:
        """Refuse a window that is too small for a round or for the warm-up, and normalised images."""
        check_pixels(self.network, normalized=self.normalize_observation)
        super().check_round(rows)


@implemented_by("penstock.tasks.model.algorithms.sac:SAC")
class SACSettings(VectorSettings):
    """SAC: an actor and twin critics, learned from rows drawn from a window of the newest rounds."""

    omitted_when_default: ClassVar[tuple[str, ...]] = (
        "network",
        "features",
        "normalize_observation",
        "random_steps",
        *VectorSettings.omitted_when_default,
    )

    name: Literal["sac"] = Field("sac", description="The algorithm.")
    initial_temperature: float = Field(1.0, gt=0, description="Temperature (weight of the entropy) at the start.")
    target_entropy: float | None = Field(None, description="Target entropy in nats; empty: -1 per action dimension.")
    random_steps: RandomSteps = 0


@implemented_by("penstock.tasks.model.algorithms.td3:TD3")
class TD3Settings(VectorSettings):
    """TD3: a deterministic actor and twin critics, learned from rows drawn from a window of the newest rounds."""

    name: Literal["td3"] = Field("td3", description="The algorithm.")
    random_steps: RandomSteps = 1_000
    exploration_noise: ExplorationNoise = 0.1
    smoothing_noise: SmoothingNoise = 0.2
    smoothing_limit: SmoothingLimit = 0.5
    policy_delay: PolicyDelay = 2
