"""Encodes snapshots in fewer bits: weight matrices as int8 or bfloat16, for actors on CPUs (ActorQ, arXiv 1910.01055).

Float32 tensors with two dimensions or more are reduced. Vectors (biases, standard deviations) are small and stay as
they are. The learner's own parameters are never changed.

int8 is symmetric, with a scale for each output channel (the first dimension): `weight ~ scale * whole number`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from safetensors.torch import save

from penstock.storage.tensors import BFLOAT16, save_tensors, tensors_metadata
from penstock.tasks.runtime.fingerprint import instruction_sets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

SnapshotDtype: TypeAlias = Literal["float32", "bfloat16", "int8"]

_SCALE = ":scale"
_LEVELS = 127
_WIDE_NUMBERS = 512 * 512  # a matrix of so many multiplies faster in bfloat16, where the processor can
_BFLOAT16_SETS = {"avx512_bf16", "amx_bf16"}


def encode_params(tensors: Mapping[str, Tensor], dtype: SnapshotDtype, meta: Mapping[str, Any]) -> bytes:
    """Return a safetensors file of parameters. Equal parameters give equal bytes.

    Args:
        tensors: by name, on the CPU.
        dtype: the type in which weight matrices are stored.
        meta: JSON-able metadata of the file; `dtype` is added unless it is float32.
    """
    if dtype == "float32":
        return save_tensors({name: value.numpy() for name, value in tensors.items()}, meta)
    if dtype == "bfloat16":
        reduced = {
            name: value.bfloat16() if _is_reduced(value) else value.clone(memory_format=torch.contiguous_format)
            for name, value in tensors.items()
        }
        return save(reduced, metadata=tensors_metadata({**meta, "dtype": dtype}))
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in tensors.items():
        if _is_reduced(value):
            whole, scale = _quantize(value)
            arrays[name], arrays[name + _SCALE] = whole.numpy(), scale.numpy()
        else:
            arrays[name] = value.numpy()
    return save_tensors(arrays, {**meta, "dtype": dtype})


def decode_params(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return parameters to act with, from the arrays of a file that `encode_params` made.

    They equal the encoded ones, reduced weights up to their precision, in float32. However, wide matrices of a reduced
    file are bfloat16 if this processor multiplies those faster: `tasks.model.nn.layers.mlp` accepts both.

    Raises:
        ValueError: the scale of a reduced weight does not fit.
    """
    wide = torch.bfloat16 if _BFLOAT16_SETS & set(instruction_sets()) else torch.float32
    params: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if name.endswith(_SCALE):
            continue
        scale = arrays.get(name + _SCALE)
        if array.dtype == BFLOAT16:
            value = torch.from_numpy(array["bits"]).view(torch.bfloat16)
        elif scale is not None:
            if scale.dtype != "float32" or scale.shape != array.shape[:1] or array.ndim < 2:
                raise ValueError(f"'{name}' of shape {array.shape} has a scale of shape {scale.shape}, {scale.dtype}")
            value = torch.from_numpy(array).float()
            value *= _column(torch.from_numpy(scale), value)
        else:
            params[name] = torch.from_numpy(array)
            continue
        params[name] = value.to(wide if value.numel() >= _WIDE_NUMBERS else torch.float32)
    return params


def _is_reduced(value: Tensor) -> bool:
    return value.dim() >= 2 and value.dtype == torch.float32


def _quantize(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return whole numbers from -127 to 127, int8, and a float32 scale for each entry of the first dimension.

    A channel with a number that is not finite gets a scale that is not finite, so that it is noticed.
    """
    scale = value.abs().flatten(1).amax(1) / _LEVELS
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    whole = torch.nan_to_num(value / _column(divisor, value)).round_().clamp_(-_LEVELS, _LEVELS)
    return whole.to(torch.int8), scale


def _column(vector: Tensor, like: Tensor) -> Tensor:
    return vector.view(-1, *([1] * (like.dim() - 1)))
