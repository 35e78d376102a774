"""Parameters in fewer bits are as near as their type allows, in files that other tools open, the same bytes always."""

import safetensors.torch
import torch

from penstock.storage.digest import digest
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.data.snapshots.quantize import SnapshotDtype, decode_params, encode_params
from penstock.tasks.model.nn.layers import init_mlp, mlp
from penstock.tasks.runtime.fingerprint import instruction_sets

REDUCED: tuple[SnapshotDtype, ...] = ("bfloat16", "int8")


def network(*sizes: int) -> dict[str, torch.Tensor]:
    """A perceptron whose biases are no whole numbers, and a vector of no layer."""
    generator = torch.Generator().manual_seed(1)
    params = init_mlp(sizes, 1.0, generator)
    for name, value in params.items():
        if name.endswith(".bias"):
            value.normal_(generator=generator)
    return {**params, "log_std": torch.tensor([0.1, -0.2])}


def there_and_back(tensors: dict[str, torch.Tensor], dtype: SnapshotDtype) -> dict[str, torch.Tensor]:
    data = encode_params(tensors, dtype, {"version": 3})
    arrays, meta = load_tensors(memoryview(bytearray(data)), "snapshot", digest(data))
    assert meta == ({"version": 3} if dtype == "float32" else {"version": 3, "dtype": dtype})
    return decode_params(arrays)


def test_float32_comes_back_bit_for_bit():
    """In the bytes that it always had."""
    tensors = network(3, 8, 2)
    back = there_and_back(tensors, "float32")
    assert {name: value.numpy().tobytes() for name, value in back.items()} == {
        name: value.numpy().tobytes() for name, value in tensors.items()
    }
    plain = save_tensors({name: value.numpy() for name, value in tensors.items()}, {"version": 3})
    assert encode_params(tensors, "float32", {"version": 3}) == plain


def test_vectors_are_never_reduced():
    """Biases and standard deviations are what they were."""
    tensors = network(3, 8, 2)
    for dtype in REDUCED:
        back = there_and_back(tensors, dtype)
        assert set(back) == set(tensors)
        for name, value in tensors.items():
            assert back[name].shape == value.shape
            assert back[name].dtype == torch.float32
            if value.dim() < 2:
                assert torch.equal(back[name], value)


def test_weights_are_rounded_to_the_nearest():
    """int8: half a step of 1/127 of its channel's largest number at most; bfloat16: one in 512 of each number."""
    weight = torch.randn(16, 33, generator=torch.Generator().manual_seed(2)) * torch.logspace(-6, 6, 16)[:, None]
    step = weight.abs().amax(1, keepdim=True) / 127
    int8 = there_and_back({"w": weight}, "int8")["w"]
    assert ((int8 - weight).abs() <= 0.5001 * step).all()
    assert torch.equal(int8.abs().amax(1), weight.abs().amax(1)) or torch.allclose(
        int8.abs().amax(1), weight.abs().amax(1), rtol=1e-6
    )
    bfloat16 = there_and_back({"w": weight}, "bfloat16")["w"]
    assert torch.equal(bfloat16, weight.bfloat16().float())
    assert ((bfloat16 - weight).abs() <= weight.abs() / 256).all()


def test_channels_of_zeros_and_of_no_numbers():
    """Zeros stay zeros; a channel with a number that is not finite shows it, and does not hurt the others."""
    weight = torch.ones(4, 3)
    weight[0] = 0.0
    weight[1, 1] = float("nan")
    weight[2, 1] = float("inf")
    data = {encode_params({"w": weight}, "int8", {}) for _ in range(3)}
    assert len(data) == 1
    back = there_and_back({"w": weight}, "int8")["w"]
    assert torch.equal(back[0], weight[0])
    assert not back[1].isfinite().any()
    assert not back[2].isfinite().all()
    assert torch.equal(back[3], weight[3])


def test_files_are_smaller_and_open_elsewhere():
    """Safetensors' own reader gives int8 and bfloat16 tensors; files are about a quarter and a half of float32's."""
    tensors = {"w": torch.randn(256, 256), "b": torch.randn(256)}
    sizes = {dtype: len(encode_params(tensors, dtype, {})) for dtype in ("float32", *REDUCED)}
    assert sizes["int8"] < 0.27 * sizes["float32"]
    assert sizes["bfloat16"] < 0.52 * sizes["float32"]
    int8 = safetensors.torch.load(encode_params(tensors, "int8", {}))
    assert {name: value.dtype for name, value in int8.items()} == {
        "w": torch.int8,
        "w:scale": torch.float32,
        "b": torch.float32,
    }
    bfloat16 = safetensors.torch.load(encode_params(tensors, "bfloat16", {}))
    assert torch.equal(bfloat16["w"], tensors["w"].bfloat16())
    assert torch.equal(bfloat16["b"], tensors["b"])


def test_the_same_parameters_have_the_same_bytes():
    """Whatever they were views of, and in whatever order they were named; and they are not changed."""
    tensors = network(3, 8, 2)
    flat = torch.cat([value.reshape(-1) for value in tensors.values()])
    before = flat.clone()
    views, start = {}, 0
    for name, value in tensors.items():
        views[name] = flat[start : start + value.numel()].view(value.shape)
        start += value.numel()
    for dtype in ("float32", *REDUCED):
        expected = encode_params(tensors, dtype, {"version": 1})
        assert encode_params(dict(reversed(views.items())), dtype, {"version": 1}) == expected
    assert torch.equal(flat, before)


def test_wide_layers_act_in_the_faster_type():
    """A matrix of 512 by 512 of a reduced file is bfloat16 where the processor multiplies that, float32 elsewhere.

    Either way a perceptron's output is float32 and near the one that was reduced; a float32 file stays as it is.
    """
    tensors = {name: value for name, value in network(4, 512, 512, 2).items() if name != "log_std"}
    observation = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))
    expected = mlp(tensors, observation)
    fast = {"avx512_bf16", "amx_bf16"} & set(instruction_sets())
    for dtype in REDUCED:
        back = there_and_back(tensors, dtype)
        assert back["1.weight"].dtype == (torch.bfloat16 if fast else torch.float32)
        assert back["0.weight"].dtype == torch.float32
        output = mlp(back, observation)
        assert output.dtype == torch.float32
        torch.testing.assert_close(output, expected, atol=0.05, rtol=0.05)
    assert torch.equal(mlp(there_and_back(tensors, "float32"), observation), expected)
