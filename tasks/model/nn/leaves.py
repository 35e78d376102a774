"""Encoders of structured observations: convolutions for the images and grids of cells among their leaves.

Pure torch; an algorithm may import this. The leaves of an observation are parts of one flat array, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from penstock.tasks.model.nn.layers import init_nature, init_small, nature, part, small

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.tasks.specs import Leaf

Cells: TypeAlias = "Mapping[str, Sequence[int]]"
"""Grids of cells among leaves, by name: the number of categories of each channel."""

NATURE_SIDE = 36
"""Smallest side of an image for `nature`; smaller leaves take `small`."""
_CONVOLUTIONS = {"nature": (init_nature, nature), "small": (init_small, small)}
_WHITE = 255.0


def init_leaves(
    leaves: Sequence[Leaf], features: int, generator: torch.Generator, cells: Cells | None = None
) -> dict[str, Tensor]:
    """Return the parameters of `encoded_leaves`: of each leaf's convolutions, `<place among the leaves>.<name>`."""
    params: dict[str, Tensor] = {}
    for place, leaf in enumerate(leaves):
        if not is_convolved(leaf, cells):
            continue
        if sizes := (cells or {}).get(leaf.name):
            made = init_small((sum(sizes), *leaf.shape[:2]), features, generator)
        else:
            encoder, shape, _ = _encoder_of(leaf)
            made = _CONVOLUTIONS[encoder][0](shape, features, generator)
        params |= {f"{place}.{name}": value for name, value in made.items()}
    return params


def encoded_leaves(
    params: Mapping[str, Tensor], leaves: Sequence[Leaf], observation: Tensor, cells: Cells | None = None
) -> Tensor:
    """Encode structured observations, float32 `[B, numbers]`: numbers as they are, then features of images and grids.

    Images of 36 x 36 at least have the convolutions of `nature`, others those of `small`; pixels are divided by 255.

    Args:
        params: as `init_leaves` makes them for the same leaves and cells.
        leaves: in the observation's order.
        observation: as `Network.prepared` gives it.
        cells: leaves `[height, width]` or `[height, width, channels]` whose numbers are categories, in place of pixels
            or numbers: each is one-hot, a plane a category, and has the convolutions of `small`. A number that is none
            of its channel's categories is 0 in all of their planes.
    """
    parts = observation.split([leaf.width for leaf in leaves], 1)
    encoded = [numbers for numbers, leaf in zip(parts, leaves, strict=True) if not is_convolved(leaf, cells)]
    for place, leaf in enumerate(leaves):
        if not is_convolved(leaf, cells):
            continue
        own = part(params, f"{place}.")
        if sizes := (cells or {}).get(leaf.name):
            encoded.append(small(own, _category_planes(parts[place], leaf, sizes)))
            continue
        encoder, (channels, *size), is_last = _encoder_of(leaf)
        images = parts[place].unflatten(1, (*size, channels) if is_last else (channels, *size))
        images = images.movedim(-1, 1) if is_last else images
        # `nature` scales its kernels, which are fewer numbers.
        scaled = images / _WHITE if encoder == "small" else images
        encoded.append(_CONVOLUTIONS[encoder][1](own, scaled))
    return torch.cat(encoded, 1) if len(encoded) > 1 else encoded[0]


def packed_leaves(leaves: Sequence[Leaf], observation: Tensor) -> Tensor:
    """Pack structured observations, float32 `[rows, numbers]`, into bytes `[rows, n]`; without an image they stay.

    Each row has the four bytes of every number outside of images, and then one of each pixel.
    """
    parts = list(zip(observation.split([leaf.width for leaf in leaves], 1), leaves, strict=True))
    pixels = [numbers.to(torch.uint8) for numbers, leaf in parts if leaf.kind == "image"]
    if not pixels:
        return observation
    others = [numbers for numbers, leaf in parts if leaf.kind != "image"]
    return torch.cat([*(numbers.contiguous().view(torch.uint8) for numbers in others), *pixels], 1)


def unpacked_leaves(leaves: Sequence[Leaf], rows: Tensor) -> Tensor:
    """Return the structured observations, float32 `[rows, numbers]`, that `packed_leaves` made these bytes of."""
    widths = [leaf.width for leaf in leaves]
    count = sum(leaf.width for leaf in leaves if leaf.kind != "image")
    held, pixels = rows.split([4 * count, rows.shape[1] - 4 * count], 1)
    # A view of the rows as floats might begin where no float may.
    floats = torch.empty(rows.shape[0], count, device=rows.device)
    floats.view(torch.uint8).copy_(held)
    found = torch.empty(rows.shape[0], sum(widths), device=rows.device)
    number = pixel = 0
    for place, leaf in zip(found.split(widths, 1), leaves, strict=True):
        if leaf.kind == "image":
            place.copy_(pixels[:, pixel : pixel + leaf.width])
            pixel += leaf.width
        else:
            place.copy_(floats[:, number : number + leaf.width])
            number += leaf.width
    return found


def is_convolved(leaf: Leaf, cells: Cells | None) -> bool:
    """Return whether a leaf has convolutions: it is an image, or named as a grid of cells."""
    return leaf.kind == "image" or leaf.name in (cells or {})


def _category_planes(numbers: Tensor, leaf: Leaf, sizes: Sequence[int]) -> Tensor:
    """Return `[B, categories of all channels, height, width]`, 1 where a cell has the category; a choice has it so."""
    planes = numbers
    if leaf.kind != "choice":
        channels = numbers.unflatten(1, (-1, len(sizes))).split(1, -1)
        each = [
            channel == torch.arange(count, device=numbers.device)
            for channel, count in zip(channels, sizes, strict=True)
        ]
        planes = torch.cat(each, -1).to(numbers.dtype).flatten(1)
    grid: Tensor = planes.unflatten(1, (*leaf.shape[:2], sum(sizes)))
    return grid.movedim(-1, 1)


def _encoder_of(leaf: Leaf) -> tuple[str, tuple[int, int, int], bool]:
    """Return the network of an image, its channels, height and width, and whether its channels are last.

    They are first or last, whichever axis is shorter, and last if both are the same.
    """
    first, second, *third = leaf.shape
    last = third[0] if third else 1
    shape = (last, first, second) if last <= first else (first, second, last)
    return "nature" if min(shape[1:]) >= NATURE_SIDE else "small", shape, last <= first
