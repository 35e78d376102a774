"""Kernels of the learner on a CPU: perceptrons, heads of losses, norms and Adam, as functions of float32 tensors.

`layers`, `distributions`, `surrogate` and `optimizers` call them where they apply, and compute with torch elsewhere: on
other devices, for other types, under `torch.export` and `torch.func`, and for wide layers, which torch multiplies as
fast. So an algorithm has one text for both. The results differ by rounding alone; `penstock check-algorithm` compares.

`penstock.native.kernel_level` has the instruction sets that they use.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.native import _learner
from penstock.native.kernel_level import LEVELS, level
from penstock.tasks.tape.capture import current_capture
from penstock.tasks.tape.operations import call
from penstock.tasks.tape.recording import current_tape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.tasks.tape.recording import Tape

_WIDEST = 256
"""Width of a layer beyond which a matrix of weights leaves the fast caches, and torch's products are as fast."""


def perceptron(inputs: Tensor, parameters: Sequence[Tensor], *, relu: bool) -> Tensor | None:
    """Apply a perceptron, or return None where torch has to.

    A row of the output depends on that row alone, bit for bit, however many there are. Gradients need a tape, which the
    learner has (`tape.recording`); without one, torch computes what autograd shall differentiate.

    Args:
        inputs: `[..., in]`.
        parameters: weight `[out, in]` and bias `[out]` of each layer.
        relu: the activation between layers: ReLU instead of tanh.

    Returns:
        `[..., out]`, float32.
    """
    number = level_number(inputs)
    if number is None:
        return None
    tape = current_tape() if torch.is_grad_enabled() else None
    if tape is None:
        if _is_torchs(inputs, *parameters):
            return None
        network = _network(number, parameters, relu)
    else:
        network = tape.network(number, parameters, relu, _network)
    if network is None or inputs.shape[-1] != network.inputs:
        return None
    rows = inputs if inputs.dim() == 2 else inputs.reshape(-1, network.inputs)
    rows = rows.contiguous()
    count = rows.shape[0]
    saved = torch.empty(count * network.saved_floats)
    outputs = torch.empty((count, network.outputs))
    if tape is None and current_capture() is None:
        network.forward(rows.data_ptr(), count, saved.data_ptr(), outputs.data_ptr())
    else:
        call(number, "forward", (rows, saved, outputs), (count,), network=network)
    if tape is not None:
        tape.record_network(network, parameters, rows, saved, outputs)
    return outputs if inputs.dim() == 2 else outputs.reshape(*inputs.shape[:-1], network.outputs)


def sample(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the choice `[...]`, int64, whose logit plus noise is largest, and its log-probability `[...]`.

    The log-probability has the bits that `choice` computes for it.

    Args:
        logits: `[..., n]`.
        noise: `[..., n]`.

    Returns:
        None where torch has to compute it.
    """
    number = level_number(logits)
    if number is None or not plain(noise) or noise.shape != logits.shape or not logits.numel() or _is_torchs(logits):
        return None
    values = logits.contiguous()
    action, chosen = torch.empty(logits.shape[:-1], dtype=torch.int64), torch.empty(logits.shape[:-1])
    call(number, "sample", (values, noise, action, chosen), (action.numel(), logits.shape[-1]))
    return action, chosen


def choice(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the log-probability `[...]` of choices `[...]`, int64, under logits `[..., n]`, and the entropy `[...]`.

    Returns:
        None where torch has to compute it.

    Raises:
        IndexError: a choice is none of `n`.
    """
    number, tape = level_number(logits), current_tape()
    if number is None or action.dtype is not torch.int64 or action.shape != logits.shape[:-1]:
        return None
    if tape is None and _is_torchs(logits):
        return None
    values, action = logits.contiguous(), action.contiguous()
    rows, n = action.numel(), logits.shape[-1]
    log_probabilities = torch.empty(logits.shape)
    chosen, entropy = torch.empty(action.shape), torch.empty(action.shape)
    call(number, "choice", (values, action, log_probabilities, chosen, entropy), (rows, n))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_chosen, to_entropy = map(contiguous_or_none, gradients)
        to_logits = torch.empty(logits.shape)
        tensors = (log_probabilities, action, entropy, to_chosen, to_entropy, to_logits)
        call(number, "choice_back", tensors, (rows, n))
        return (to_logits,)

    if tape is not None and torch.is_grad_enabled():
        tape.record((logits,), (chosen, entropy), back)
    return chosen, entropy


def density(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the log-density `[...]` of vectors `[..., n]` under a normal distribution, and its entropy `[...]`.

    Args:
        mean: `[..., n]`.
        log_std: `[n]`.
        action: `[..., n]`.

    Returns:
        None where torch has to compute it.
    """
    number, tape = level_number(mean), current_tape()
    if number is None or not (constant(action) and plain(log_std)) or action.shape != mean.shape:
        return None
    if log_std.shape != mean.shape[-1:] or (tape is None and _is_torchs(mean, log_std)):
        return None
    values, n = mean.contiguous(), mean.shape[-1]
    found, entropy, standardised = (torch.empty(shape) for shape in (mean.shape[:-1], mean.shape[:-1], mean.shape))
    rows = found.numel()
    call(number, "density", (values, log_std, action, standardised, found, entropy), (rows, n))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        to_density, to_entropy = map(contiguous_or_none, gradients)
        to_mean = None if to_density is None else torch.empty(mean.shape)
        to_log_std = torch.empty(n)
        tensors = (standardised, log_std, to_density, to_entropy, to_mean, to_log_std)
        call(number, "density_back", tensors, (rows, n))
        return to_mean, to_log_std

    if tape is not None and torch.is_grad_enabled():
        tape.record((mean, log_std), (found, entropy), back)
    return found, entropy


def surrogate(
    log_probability: Tensor, behaviour: Tensor, advantage: Tensor, clip_range: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the clipped surrogate, the divergence's estimate, and 1 for clipped ratios: `[...]` each.

    Args:
        log_probability: `[...]`, of the policy that learns.
        behaviour: `[...]`, of the policy that acted.
        advantage: `[...]`.
        clip_range: the distance of the ratio from 1 beyond which it has no gradient.

    Returns:
        None where torch has to compute it.
    """
    number, tape = level_number(log_probability), current_tape()
    if number is None or not (constant(behaviour, advantage) and log_probability.is_contiguous()):
        return None
    if not log_probability.shape == behaviour.shape == advantage.shape:
        return None
    if tape is None and _is_torchs(log_probability):
        return None
    found, slope, divergence, is_clipped = (torch.empty(behaviour.shape) for _ in range(4))
    tensors = (log_probability, behaviour, advantage, found, slope, divergence, is_clipped)
    call(number, "surrogate", tensors, (behaviour.numel(),), (clip_range,))
    if tape is not None and torch.is_grad_enabled():
        tape.record((log_probability,), (found,), lambda gradients: (times(gradients[0], slope),))
    return found, divergence, is_clipped


def normalise(values: Tensor, mean: Tensor | None, scale: Tensor, limit: float) -> Tensor | None:
    """Return `(values - mean) * scale` within plus and minus the limit, without a gradient.

    Args:
        values: `[..., n]`.
        mean: `[n]`; None subtracts nothing.
        scale: `[n]`.
        limit: largest magnitude of the result; a NaN stays one.

    Returns:
        None where torch has to compute it.
    """
    number = level_number(values)
    if number is None or scale.dim() != 1 or values.shape[-1:] != scale.shape or not constant(values):
        return None
    if not plain(scale) or not (mean is None or (plain(mean) and mean.shape == scale.shape)):
        return None
    found, n = torch.empty(values.shape), values.shape[-1]
    call(number, "normalise", (values, mean, scale, found), (values.numel() // n if n else 0, n), (limit,))
    return found


def standardise(values: Tensor, count: Tensor, total: Tensor, squares: Tensor) -> Tensor | None:
    """Return values `[...]` with mean 0 and variance 1, by the float64 totals `[1]` of all values of a round.

    Args:
        values: of some rows.
        count: the number of all values.
        total: their sum.
        squares: the sum of their squares.

    Returns:
        None where torch has to compute it.
    """
    number = level_number(values)
    if number is None or not constant(values):
        return None
    found = torch.empty(values.shape)
    call(number, "standardise", (values, count, total, squares, found), (values.numel(),))
    return found


def norm(vector: Tensor) -> float | None:
    """Return the Euclidean norm of `[P]`, summed in float64; None where torch has to compute it."""
    number = level_number(vector)
    if number is None or not vector.is_contiguous():
        return None
    return _learner.norm(number, vector.data_ptr(), vector.numel())


def adam(
    params: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    learning_rate: float,
    decays: tuple[float, float],
    epsilon: float,
) -> bool:
    """Take a step of Adam in place, as `optimizers.step_adam` does; return False where torch has to."""
    number = level_number(params)
    mean, square, step = state["mean"], state["square"], state["step"]
    if number is None or not all(map(plain, (params, gradient, mean, square, step))):
        return False
    _learner.adam(
        number,
        params.data_ptr(),
        gradient.data_ptr(),
        mean.data_ptr(),
        square.data_ptr(),
        step.data_ptr(),
        params.numel(),
        learning_rate,
        *decays,
        epsilon,
    )
    return True


def tape_for(tensor: Tensor) -> Tape | None:
    """Return the tape on which a function of this tensor may record its own gradient; None leaves it to autograd."""
    return current_tape() if torch.is_grad_enabled() and level_number(tensor) is not None else None


def times(gradient: Tensor | None, slope: Tensor) -> Tensor:
    """Return the product, for the `back` of a function of which each output has one slope."""
    assert gradient is not None
    if not (plain(gradient) and plain(slope) and gradient.shape == slope.shape):
        return gradient * slope
    found = torch.empty(slope.shape)
    call(0, "multiply", (gradient, slope, found), (found.numel(),))
    return found


def _is_torchs(*tensors: Tensor) -> bool:
    """Return whether autograd follows one of these tensors."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def contiguous_or_none(gradient: Tensor | None) -> Tensor | None:
    """Return a gradient as kernels read it, if there is one."""
    return None if gradient is None else gradient.contiguous()


def level_number(tensor: Tensor) -> int | None:
    """Return the number of the level in use, or None if this tensor is torch's."""
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        return None
    if tensor.dtype is not torch.float32 or not tensor.is_cpu:
        return None
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return None
    number = LEVELS.index(level()) - 1
    return None if number < 0 else number


def plain(tensor: Tensor) -> bool:
    """Return whether kernels can read a tensor."""
    return tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()


def constant(*tensors: Tensor) -> bool:
    """Return whether kernels can read tensors, and no gradient is to reach them: theirs has none for these."""
    return all(map(plain, tensors)) and not _is_torchs(*tensors)


def plain_choices(tensor: Tensor) -> bool:
    """Return whether kernels can read a tensor as the numbers of choices."""
    return tensor.dtype is torch.int64 and tensor.is_cpu and tensor.is_contiguous()


def _network(number: int, parameters: Sequence[Tensor], relu: bool) -> _learner.Network | None:
    """Return the kernels' view of parameters, which have to outlive it; None if they are torch's."""
    key = (number, relu, *map(id, parameters))
    known = _networks.get(key)
    if known is not None and known.describes(parameters):
        return known.network
    network = _new_network(number, parameters, relu)
    if network is not None:
        if len(_networks) >= _MOST_NETWORKS:
            _networks.clear()
        _networks[key] = _Known(network, [weakref.ref(each) for each in parameters], parameters)
    return network


class _Known:
    """A network of tensors that were checked: it holds as long as they are the same, at the same addresses."""

    __slots__ = ("_addresses", "_tensors", "network")

    def __init__(self, network: _learner.Network, tensors: list[weakref.ref[Tensor]], now: Sequence[Tensor]) -> None:
        self.network = network
        self._tensors = tensors
        self._addresses = [each.data_ptr() for each in now]

    def describes(self, parameters: Sequence[Tensor]) -> bool:
        """Return whether these are its tensors: another one may have the number of one that is gone."""
        for each, tensor, address in zip(parameters, self._tensors, self._addresses, strict=True):
            if tensor() is not each or each.data_ptr() != address or not each.is_contiguous():
                return False
        return True


_MOST_NETWORKS = 64
_networks: dict[tuple[int, ...], _Known] = {}


def _new_network(number: int, parameters: Sequence[Tensor], relu: bool) -> _learner.Network | None:
    widths = [parameters[0].shape[-1]]
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        if not (plain(weight) and plain(bias) and weight.shape == (len(bias), widths[-1])):
            return None
        widths.append(len(bias))
    if max(widths) > _WIDEST or 0 in widths:
        return None
    return _learner.Network(number, widths, [parameter.data_ptr() for parameter in parameters], relu)
