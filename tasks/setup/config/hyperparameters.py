"""Declares hyper-parameters that several algorithms have: type, bounds, description. Each algorithm sets a default."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

Widths = Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...], Field(max_length=64)]
"""Widths of layers: two of the largest have 16 GiB of weights between them."""

Hidden = Annotated[Widths, Field(description="Widths of the hidden layers.")]

# Networks without a memory
EncoderNetwork = Annotated[
    Literal["mlp", "nature", "residual", "small", "lines", "leaves"],
    Field(
        description="Encoder before the hidden layers: none (mlp), or convolutions for images (nature, residual), "
        "for grids of cells (small, or lines where lines of four count) or for the images of a structured observation "
        "(leaves)."
    ),
]
Cells = Annotated[
    dict[str, Annotated[tuple[Annotated[int, Field(ge=1, le=256)], ...], Field(min_length=1)]],
    Field(
        description="Leaves that the network 'leaves' reads as grids of cells, by name, with the number of categories "
        "of each channel, such as {image = [11, 6, 3]}: whole numbers [height, width] or [height, width, channels], "
        "which become one-hot. Without a name here, a leaf is an image of pixels, or numbers."
    ),
]
EncoderFeatures = Annotated[int, Field(ge=1, description="Features of the encoder; a plain mlp has none.")]
Channels = Annotated[
    Literal["first", "last"] | None,
    Field(
        description="Axis of an image's channels. Empty: first for residual, last for small and lines, and for nature "
        "last if only that axis is shorter than 36."
    ),
]

Activation = Annotated[Literal["tanh", "relu"], Field(description="Activation of the hidden layers.")]

# Optimization
AnnealedLearningRate = Annotated[float, Field(gt=0, description="Adam's learning rate at the start.")]
LearningRate = Annotated[float, Field(gt=0, description="Adam's learning rate.")]
AdamEpsilon = Annotated[
    float, Field(gt=0, description="Adam's epsilon: what is added to the root of its second moment.")
]
FinalLearningRate = Annotated[float, Field(ge=0, description="Learning rate after anneal_rounds rounds.")]
AnnealRounds = Annotated[
    int,
    Field(
        ge=0,
        description="Rounds over which the learning rate, and the entropy bonus with a final weight, change linearly; "
        "0 keeps them.",
    ),
]
LearningAnnealRounds = Annotated[
    int, Field(ge=0, description="Rounds of learning over which the learning rate changes linearly; 0 keeps it.")
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
EntropyWeight = Annotated[float, Field(ge=0, description="Weight of the entropy bonus, at the start if it changes.")]
FinalEntropyWeight = Annotated[
    float | None,
    Field(ge=0, description="Weight of the entropy bonus after anneal_rounds rounds, linearly; none keeps it."),
]
BoundedMean = Annotated[
    bool, Field(description="Squash the policy's mean into the environment's bounds by tanh, for vectors of actions.")
]
InitialLogStd = Annotated[float, Field(description="Log standard deviation at the start, continuous actions.")]

# Normalisers
NormalizeObservation = Annotated[
    bool, Field(description="Normalise observations by running mean and deviation, clipped at 10 deviations.")
]
NormalizeReward = Annotated[
    bool, Field(description="Normalise rewards by the running deviation of their discounted sums, clipped at 10.")
]

# Values and exploration of off-policy algorithms
TargetShare = Annotated[
    float,
    Field(gt=0, le=1, description="Share of the critics that is mixed into their targets after a minibatch (tau)."),
]
TargetMinibatches = Annotated[int, Field(ge=1, description="Minibatches between copies to the target network.")]
ReturnSteps = Annotated[int, Field(ge=1, description="Steps whose rewards count before the bootstrap.")]
ReturnsAcrossRounds = Annotated[
    bool,
    Field(description="Returns of several steps continue in the next round, once it has arrived; otherwise they end."),
]
FirstEpsilon = Annotated[float, Field(ge=0, le=1, description="Epsilon at the start.")]
LastEpsilon = Annotated[float, Field(ge=0, le=1, description="Epsilon at the end.")]
EpsilonMinibatches = Annotated[int, Field(ge=1, description="Minibatches over which epsilon falls linearly.")]
ExplorationNoise = Annotated[
    float, Field(ge=0, description="Deviation of the actors' noise; actions are from -1 to 1 where it is added.")
]
SmoothingNoise = Annotated[float, Field(ge=0, description="Deviation of the noise of the target policy's actions.")]
SmoothingLimit = Annotated[float, Field(ge=0, description="Largest magnitude of that noise.")]
PolicyDelay = Annotated[int, Field(ge=1, description="Minibatches of the critics for each step of the actor.")]
RandomSteps = Annotated[
    int, Field(ge=0, description="Steps of all environments that are acted at random at the start, in whole rounds.")
]

# Replay windows
WindowRows = Annotated[int, Field(ge=1, description="Steps in the replay window, the newest whole rounds.")]
WarmUpRows = Annotated[int, Field(ge=1, description="Steps in the window before learning begins.")]

# Prioritised replay
PriorityExponent = Annotated[
    float, Field(ge=0, description="Alpha: how strongly errors raise a row's probability; 0 is uniform.")
]
PriorityCorrection = Annotated[float, Field(ge=0, le=1, description="Beta: how strongly weights correct that bias.")]
CorrectionMinibatches = Annotated[
    int, Field(ge=0, description="Minibatches over which beta rises linearly to 1; 0 keeps it.")
]
