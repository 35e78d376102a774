"""Convolutional networks against torch's own layers with the same weights."""

import pytest
import torch
from torch import Tensor, nn

from penstock.tasks.model.nn.layers import (
    init_lines,
    init_nature,
    init_residual,
    init_small,
    lines,
    nature,
    residual,
    small,
)

NETWORKS = {
    "nature": (init_nature, nature),
    "residual": (init_residual, residual),
    "small": (init_small, small),
    "lines": (init_lines, lines),
}


def shape_for(name: str, height: int, width: int) -> tuple[int, int, int]:
    return (4, 6, 7) if name == "lines" else (4, height, width)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=generator(5), dtype=torch.uint8)


def with_biases(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random biases in place of zeros, so that a forgotten one shows."""
    for number, (name, value) in enumerate(params.items()):
        if name.endswith(".bias"):
            value.copy_(torch.randn(value.shape, generator=generator(number)))
    return params


def loaded(layer: nn.Module, params: dict[str, Tensor], name: str) -> nn.Module:
    layer.load_state_dict({"weight": params[f"{name}.weight"], "bias": params[f"{name}.bias"]})
    return layer


def test_nature_is_the_published_network():
    """Three convolutions and a linear layer, rectified each; 84 x 84 gives 64 x 7 x 7 before the last."""
    params = with_biases(init_nature((4, 84, 84), 512, generator()))
    assert params["3.weight"].shape == (512, 64 * 7 * 7)
    reference = nn.Sequential(
        loaded(nn.Conv2d(4, 32, 8, 4), params, "0"),
        nn.ReLU(),
        loaded(nn.Conv2d(32, 64, 4, 2), params, "1"),
        nn.ReLU(),
        loaded(nn.Conv2d(64, 64, 3, 1), params, "2"),
        nn.ReLU(),
        nn.Flatten(),
        loaded(nn.Linear(64 * 7 * 7, 512), params, "3"),
        nn.ReLU(),
    )
    seen = images(3, 4, 84, 84)
    with torch.no_grad():
        torch.testing.assert_close(nature(params, seen), reference(seen.float() / 255), rtol=1e-4, atol=1e-5)


class _Block(nn.Module):
    def __init__(self, params: dict[str, Tensor], name: str, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReLU(),
            loaded(nn.Conv2d(channels, channels, 3, padding=1), params, f"{name}.0"),
            nn.ReLU(),
            loaded(nn.Conv2d(channels, channels, 3, padding=1), params, f"{name}.1"),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = inputs + self.inner(inputs)
        return result


@pytest.mark.parametrize("size", [(32, 32), (21, 30)])
def test_residual_is_the_published_network(size: tuple[int, int]):
    """Sections of a convolution, a pool and two residual blocks; fifteen convolutions for three sections."""
    channels = (16, 32, 32)
    params = with_biases(init_residual((3, *size), 256, generator(), channels))
    assert sum(value.dim() == 4 for value in params.values()) == 15
    layers: list[nn.Module] = []
    before = 3
    for section, width in enumerate(channels):
        layers += [
            loaded(nn.Conv2d(before, width, 3, padding=1), params, f"{section}.entry"),
            nn.MaxPool2d(3, 2, padding=1),
            _Block(params, f"{section}.0", width),
            _Block(params, f"{section}.1", width),
        ]
        before = width
    linear = loaded(nn.Linear(params["output.weight"].shape[1], 256), params, "output")
    reference = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), linear, nn.ReLU())
    seen = images(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(residual(params, seen), reference(seen.float() / 255), rtol=1e-4, atol=1e-4)


def test_small_is_the_published_network():
    """One convolution of 3 x 3 with 16 channels and a linear layer; cells are taken as they are, not as pixels."""
    params = with_biases(init_small((4, 10, 9), 128, generator()))
    assert params["1.weight"].shape == (128, 16 * 8 * 7)
    reference = nn.Sequential(
        loaded(nn.Conv2d(4, 16, 3), params, "0"),
        nn.ReLU(),
        nn.Flatten(),
        loaded(nn.Linear(16 * 8 * 7, 128), params, "1"),
        nn.ReLU(),
    )
    for seen in (images(3, 4, 10, 9) % 2, images(3, 4, 10, 9) > 127):
        with torch.no_grad():
            torch.testing.assert_close(small(params, seen), reference(seen.float()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_learning_may_follow_acting(name: str):
    """In one process: what inference has made must not stay where gradients are taken."""
    init, apply = NETWORKS[name]
    shape = (3, 5, 8) if name == "lines" else (3, 40, 40)  # no other test has it
    params = {key: value.requires_grad_() for key, value in init(shape, 8, generator()).items()}
    with torch.inference_mode():
        apply(params, images(2, *shape))
    apply(params, images(2, *shape)).sum().backward()
    assert all(value.grad is not None for value in params.values())


def test_lines_of_four_share_their_weights():
    """Each of the 69 lines of connect four is seen by the same weights, and so is each cell by its lines."""
    params = with_biases(init_lines((2, 6, 7), 16, generator()))
    grid = images(1, 2, 6, 7)[0] % 2
    threats = params["1.bias"].repeat(6, 7, 1)
    count = 0
    for row in range(6):
        for column in range(7):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                line = [(row + step * down, column + step * right) for step in range(4)]
                if not all(0 <= at < 6 and 0 <= to < 7 for at, to in line):
                    continue
                count += 1
                cells = torch.cat([grid[:, at, to] for at, to in line]).float()
                hidden = torch.relu(params["0.weight"] @ cells + params["0.bias"])
                for (at, to), weight in zip(line, params["1.weight"].split(4), strict=True):
                    threats[at, to] += weight @ hidden
    assert count == 69
    seen = torch.cat([torch.relu(threats).flatten(), grid.movedim(0, -1).flatten().float()])
    expected = torch.relu(params["2.weight"] @ seen + params["2.bias"])
    torch.testing.assert_close(lines(params, grid[None])[0], expected, rtol=1e-4, atol=1e-4)


def test_weights_start_orthogonal_by_the_generator_alone():
    """Kernels as matrices `[out, rest]` have orthogonal rows of length sqrt(2); the global generator is not touched."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = init_residual((3, 16, 16), 8, generator()), init_residual((3, 16, 16), 8, generator())
    least = init_nature((1, 36, 36), 8, generator())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name in ("1.0.0.weight", "output.weight"):
        rows = first[name].flatten(1)
        torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(len(rows)), rtol=1e-4, atol=1e-4)
    assert least["3.weight"].shape == (8, 64)


def test_an_image_too_small_is_refused():
    """The third kernel would find nothing to see; a pixel more is enough."""
    with pytest.raises(ValueError, match=r"image of \(4, 35, 84\) is too small: height and width must be 36 at least"):
        init_nature((4, 35, 84), 512, generator())
    with pytest.raises(ValueError, match=r"grid of \(6, 7, 2\) is too small: height and width must be 3 at least"):
        init_small((6, 7, 2), 128, generator())
    assert init_small((2, 3, 3), 8, generator())["1.weight"].shape == (8, 16)
    for shape in ((2, 3, 7), (2, 21, 20)):
        with pytest.raises(ValueError, match=r"expected height and width of 4 at least, and 400 cells at most"):
            init_lines(shape, 128, generator())
    assert init_lines((2, 4, 4), 8, generator())["2.weight"].shape == (8, 16 * 6)


@pytest.mark.parametrize("name", NETWORKS)
def test_reduced_weights_are_taken(name: str):
    """Wide weights of a reduced snapshot come as bfloat16: the result is float32, and rounded alone."""
    make, apply = NETWORKS[name]
    params = make(shape_for(name, 84, 84), 64, generator())
    reduced = {key: value.bfloat16() if value.dim() > 1 else value for key, value in params.items()}
    seen = images(2, *shape_for(name, 84, 84))
    expected, found = apply(params, seen), apply(reduced, seen)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_order_in_memory_changes_nothing_but_time(name: str):
    """With channels last, results and gradients are the same numbers, to rounding."""
    make, apply = NETWORKS[name]
    params = with_biases(make(shape_for(name, 40, 44), 16, generator()))
    leaves = [value.requires_grad_() for value in params.values()]
    seen = images(3, *shape_for(name, 40, 44))
    found = []
    for order in (torch.contiguous_format, torch.channels_last):
        features = apply(params, seen.contiguous(memory_format=order))
        found.append([features.detach(), *torch.autograd.grad(features.square().sum(), leaves)])
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))
