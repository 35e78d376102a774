"""Declares hyper-parameters that several algorithms have: type, bounds, description. Each algorithm sets a default."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Widths = tuple[Annotated[int, Field(ge=1)], ...]
"""Widths of layers."""

Hidden = Annotated[Widths, Field(description="Widths of the hidden layers.")]

# Optimization
AnnealedLearningRate = Annotated[float, Field(gt=0, description="Adam's learning rate at the start.")]
LearningRate = Annotated[float, Field(gt=0, description="Adam's learning rate.")]
FinalLearningRate = Annotated[float, Field(ge=0, description="Learning rate after anneal_rounds rounds.")]
AnnealRounds = Annotated[
    int, Field(ge=0, description="Rounds over which the learning rate changes linearly; 0 keeps it.")
]
Epochs = Annotated[int, Field(ge=1, description="Passes over a round's rows.")]
EpochMinibatches = Annotated[int, Field(ge=1, description="Minibatches a pass.")]
RoundMinibatches = Annotated[int, Field(ge=1, description="Minibatches of a round.")]
MinibatchRows = Annotated[int, Field(ge=1, description="Rows of a minibatch.")]
GroupGradientNorm = Annotated[float, Field(gt=0, description="Largest gradient norm of a group.")]
GradientNorm = Annotated[float, Field(gt=0, description="Largest norm of the gradient.")]

# Returns and advantages
Discount = Annotated[float, Field(ge=0, le=1, description="Gamma.")]
TraceDecay = Annotated[float, Field(ge=0, le=1, description="Lambda of the advantage estimate.")]
RewardScale = Annotated[
    float, Field(gt=0, description="Factor on rewards while learning; reported returns are unscaled.")
]

# Policies
ClipRange = Annotated[float, Field(gt=0, description="Largest change of the probability ratio.")]
EntropyWeight = Annotated[float, Field(ge=0, description="Weight of the entropy bonus.")]
InitialLogStd = Annotated[float, Field(description="Log standard deviation at the start, continuous actions.")]

# Normalisers
NormalizeObservation = Annotated[
    bool, Field(description="Normalise observations by running mean and deviation, clipped at 10 deviations.")
]
NormalizeReward = Annotated[
    bool, Field(description="Normalise rewards by the running deviation of their discounted sums, clipped at 10.")
]

# Replay windows
WindowRows = Annotated[int, Field(ge=1, description="Steps in the replay window, the newest whole rounds.")]
WarmUpRows = Annotated[int, Field(ge=1, description="Steps in the window before learning begins.")]
