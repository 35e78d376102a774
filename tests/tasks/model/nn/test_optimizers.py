"""Optimizer steps against torch's own."""

import pytest
import torch

from penstock.native.kernel_level import use_level
from penstock.tasks.model.nn.optimizers import annealed, clip_norm, cosine_annealed, init_adam, step_adam

from ....support.algorithms.distant_device import DISTANT, DistantDevice


def gradients(count: int) -> list[torch.Tensor]:
    """Return gradients of very different sizes, so that both Adam's moments and its epsilon matter."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(11, generator=generator) * 10.0 ** (step % 7 - 5) for step in range(count)]


def test_adam_equals_torchs_adam():
    """Without kernels, bit for bit over ten steps with changing rates: parameters, both moments and the counter."""
    with use_level("torch"):
        compare_with_torchs_adam()


def compare_with_torchs_adam() -> None:
    start = torch.linspace(-1, 1, 11)
    mine, theirs = start.clone(), torch.nn.Parameter(start.clone())
    state = init_adam(mine)
    optimizer = torch.optim.Adam([theirs], lr=0.1, eps=1e-5, fused=True)
    for step, gradient in enumerate(gradients(10)):
        rate = 0.1 / (step + 1)
        step_adam(mine, gradient, state, rate)
        optimizer.param_groups[0]["lr"] = rate
        theirs.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(mine, theirs.detach()), step
    inner = optimizer.state[theirs]
    assert torch.equal(state["mean"], inner["exp_avg"])
    assert torch.equal(state["square"], inner["exp_avg_sq"])
    assert state["step"].item() == inner["step"].item() == 10


def test_adam_is_the_published_algorithm():
    """Algorithm 1 of the paper, in plain float64."""
    params = torch.linspace(-1, 1, 11, dtype=torch.float64)
    state = init_adam(params)
    expected, mean, square = params.clone(), torch.zeros(11, dtype=torch.float64), torch.zeros(11, dtype=torch.float64)
    for step, small in enumerate(gradients(8), start=1):
        gradient = small.double()
        step_adam(params, gradient, state, 0.05)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        expected -= 0.05 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-5)
    torch.testing.assert_close(params, expected, rtol=1e-9, atol=1e-12)


def test_adam_leaves_the_gradient_alone():
    """The caller may use the gradient again."""
    params, gradient = torch.zeros(3), torch.tensor([1.0, -2.0, 3.0])
    step_adam(params, gradient, init_adam(params), 0.1)
    assert gradient.tolist() == [1.0, -2.0, 3.0]
    assert params.ne(0).all()


def test_a_fresh_state_knows_nothing():
    """Zero moments of the vector's size and a scalar counter."""
    state = init_adam(torch.ones(4))
    assert {name: tuple(value.shape) for name, value in state.items()} == {"mean": (4,), "square": (4,), "step": ()}
    assert not any(value.any() for value in state.values())
    assert state["step"].dtype == torch.float32


@pytest.mark.parametrize("limit", [0.5, 4.999, 5.001, 100.0])
def test_clipping_equals_torchs(limit: float):
    """A gradient of norm 5 is scaled down to the limit, or left bit for bit as it is."""
    gradient = torch.tensor([3.0, 0.0, -4.0])
    reference = torch.nn.Parameter(torch.zeros(3))
    reference.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([reference], limit)
    clipped = clip_norm(gradient, limit)
    torch.testing.assert_close(clipped, reference.grad)
    assert torch.linalg.vector_norm(clipped).item() == pytest.approx(min(limit, 5.0), rel=1e-5)
    assert torch.equal(clipped, gradient) == (limit > 5)
    assert gradient.tolist() == [3.0, 0.0, -4.0]


def test_clipping_nothing_gives_nothing():
    """A zero gradient has no direction, and gives no NaN."""
    assert clip_norm(torch.zeros(3), 0.5).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("taken", "over", "rate"), [(0, 4, 1.0), (1, 4, 0.8), (4, 4, 0.2), (9, 4, 0.2), (9, 0, 1.0)])
def test_a_rate_is_annealed_linearly_and_then_kept(taken: int, over: int, rate: float):
    """By the steps that Adam has taken; over none it stays."""
    assert annealed(1.0, 0.2, {"step": torch.tensor(float(taken))}, over) == pytest.approx(rate)


@pytest.mark.parametrize("over", [0, 8])
def test_a_rate_falls_by_a_cosine_as_torchs_does_and_then_stays_0(over: int):
    """By the steps that Adam has taken, on a CPU and on a device; over none it stays."""
    state = init_adam(torch.zeros(1))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, over))
    for _ in range(over + 1):
        expected = pytest.approx(schedule.get_last_lr()[0] if over else 0.3, abs=1e-7)
        assert cosine_annealed(0.3, state, over) == expected
        with DistantDevice():
            there = {"step": state["step"].to(DISTANT)}
            assert float(cosine_annealed(0.3, there, over)) == expected
        optimizer.step()
        schedule.step()
        state["step"] += 1
    state["step"] += 5
    assert cosine_annealed(0.3, state, over) == (0.0 if over else 0.3)


def test_a_step_on_a_device_waits_for_nothing():
    """An annealed rate and the counter of steps stay there; steps are those of a CPU to float32's precision."""
    first = torch.linspace(-1, 1, 11)
    here, state = first.clone(), init_adam(first)
    with DistantDevice() as device:
        there = first.to(DISTANT)
        kept = {name: value.to(DISTANT) for name, value in init_adam(first).items()}
        moved = [gradient.to(DISTANT) for gradient in gradients(6)]
        device.crossings.clear()
        for gradient in moved:
            step_adam(there, clip_norm(gradient, 0.5), kept, annealed(0.1, 0.01, kept, 4))
        assert device.crossings == []
        found = there.cpu()
    for gradient in gradients(6):
        step_adam(here, clip_norm(gradient, 0.5), state, annealed(0.1, 0.01, state, 4))
    torch.testing.assert_close(found, here, rtol=1e-5, atol=1e-6)
