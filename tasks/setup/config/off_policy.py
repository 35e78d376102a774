"""Settings of off-policy algorithms: DQN and SAC."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings, check_window, implemented_by
from penstock.tasks.setup.config.hyperparameters import (
    AnnealedLearningRate,
    Discount,
    FinalLearningRate,
    GradientNorm,
    Hidden,
    LearningRate,
    MinibatchRows,
    NormalizeObservation,
    RoundMinibatches,
    WarmUpRows,
    WindowRows,
)

if TYPE_CHECKING:
    from penstock.native import EnvironmentSpec

_IMAGE_DIMENSIONS = 3
_LEAST_IMAGE_PIXELS = 36
"""The network 'nature' takes no smaller images."""


class OffPolicySettings(AlgorithmSettings):
    """The part that DQN and SAC share: a perceptron over numbers, and a window."""

    learns_from_window: ClassVar[bool] = True

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse images: a perceptron over their pixels learns next to nothing. The boards of games are no images."""
        super().check_environment(environment)
        observed = environment["observation"]
        shape = observed.get("behind_mask", observed["shape"])
        is_image = len(shape) == _IMAGE_DIMENSIONS and sorted(shape)[1] >= _LEAST_IMAGE_PIXELS
        if is_image and observed["dtype"] == "uint8":
            raise ConfigError(
                f"algorithm.name = '{self.name}': {environment['id']} observes images {list(shape)}, and {self.name} "
                f"has no network for them; choose ppo or impala with algorithm.network = 'nature'"
            )


@implemented_by("penstock.tasks.model.algorithms.dqn:DQN")
class DQNSettings(OffPolicySettings):
    """DQN: values of choices, learned from rows drawn from a window of the newest rounds."""

    action_kinds: ClassVar[tuple[str, ...]] = ("discrete",)
    omitted_when_default: ClassVar[tuple[str, ...]] = ("final_learning_rate", "anneal_rounds")

    name: Literal["dqn"] = Field("dqn", description="The algorithm.")
    hidden: Hidden = (120, 84)
    learning_rate: AnnealedLearningRate = 2.5e-4
    final_learning_rate: FinalLearningRate = 0.0
    anneal_rounds: int = Field(
        0,
        ge=0,
        description="Rounds of learning over which the learning rate changes linearly; 0 keeps it.",
    )
    discount: Discount = 0.99
    window_rows: WindowRows = 10_000
    warm_up_rows: WarmUpRows = 1_000
    minibatch_rows: MinibatchRows = 128
    minibatches: RoundMinibatches = 10
    target_minibatches: int = Field(50, ge=1, description="Minibatches between copies to the target network.")
    return_steps: int = Field(1, ge=1, description="Steps whose rewards count before the bootstrap.")
    double: bool = Field(True, description="Double DQN: the network chooses the next action, its target evaluates it.")
    dueling: bool = Field(
        True, description="Dueling network: separate outputs for a state's value and its actions' advantages."
    )
    huber: bool = Field(False, description="Huber loss: errors beyond 1 count linearly; suits rewards of -1 to 1.")
    priority_exponent: float = Field(
        0.0, ge=0, description="Alpha: how strongly errors raise a row's probability; 0 is uniform."
    )
    priority_correction: float = Field(0.4, ge=0, le=1, description="Beta: how strongly weights correct that bias.")
    first_epsilon: float = Field(1.0, ge=0, le=1, description="Epsilon at the start.")
    last_epsilon: float = Field(0.05, ge=0, le=1, description="Epsilon at the end.")
    epsilon_minibatches: int = Field(25_000, ge=1, description="Minibatches over which epsilon falls linearly.")
    gradient_norm: GradientNorm = 10.0

    def check_round(self, rows: int) -> None:
        """Refuse a window that is too small for a round or for the warm-up."""
        check_window(self.window_rows, self.warm_up_rows, rows)


@implemented_by("penstock.tasks.model.algorithms.sac:SAC")
class SACSettings(OffPolicySettings):
    """SAC: an actor and twin critics, learned from rows drawn from a window of the newest rounds."""

    action_kinds: ClassVar[tuple[str, ...]] = ("box",)
    omitted_when_default: ClassVar[tuple[str, ...]] = ("normalize_observation",)

    name: Literal["sac"] = Field("sac", description="The algorithm.")
    hidden: Hidden = (256, 256)
    learning_rate: LearningRate = 3e-4
    discount: Discount = 0.99
    window_rows: WindowRows = 1_000_000
    warm_up_rows: WarmUpRows = 1_000
    minibatch_rows: MinibatchRows = 256
    minibatches: RoundMinibatches = 64
    target_share: float = Field(
        0.005, gt=0, le=1, description="Share of the critics that is mixed into their targets after a minibatch (tau)."
    )
    initial_temperature: float = Field(1.0, gt=0, description="Temperature (weight of the entropy) at the start.")
    target_entropy: float | None = Field(None, description="Target entropy in nats; empty: -1 per action dimension.")
    normalize_observation: NormalizeObservation = False

    def check_round(self, rows: int) -> None:
        """Refuse a window that is too small for a round or for the warm-up."""
        check_window(self.window_rows, self.warm_up_rows, rows)
