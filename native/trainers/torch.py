"""Views the arrays of a pool's step as torch tensors, in the same memory.

The other way needs nothing: `Pool.step` takes CPU tensors as actions, and copies none that have its type and layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.native.trainers.common import missing

try:
    import torch
except ModuleNotFoundError as error:
    raise missing("PyTorch", error) from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.native.interface import Infos


class StepTensors(NamedTuple):
    """A step as tensors on the CPU; `infos` are as they were."""

    observation: torch.Tensor
    reward: torch.Tensor
    """float64, as Gymnasium's; most losses want `reward.float()`."""
    terminated: torch.Tensor
    truncated: torch.Tensor
    infos: Infos


def as_tensors(
    step: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], Infos],
) -> StepTensors:
    """Return the arrays of `Pool.step` as tensors that share their memory.

    A tensor keeps its memory for as long as it lives: later steps go elsewhere, so it may be kept, written to, and
    handed on. Dropping it is what lets the pool use the memory again. A slice or view of it keeps all of the step's
    arrays; `clone()` what is kept for long of a large batch.
    """
    *arrays, infos = step
    observation, reward, terminated, truncated = (torch.from_numpy(array) for array in arrays)
    return StepTensors(observation, reward, terminated, truncated, infos)
