"""On a GPU, captured rounds equal eager ones, and nothing crosses to the host within a round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from penstock.tasks.environments.torch.device_work import CapturedWork, Departure, Staged
from penstock.tasks.roles.learning.device_round import DeviceRounds
from penstock.tasks.roles.reducing.reduction import LocalReduction

from ..tasks.roles.learning.test_device_round import GPU_ONLY, RUNS, Loop, everything, learned_as_others_do

if TYPE_CHECKING:
    from penstock.tasks.runtime.run_context import RunContext

    from ..tasks.conftest import MakeContext

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)
ROUNDS = 6


@pytest.fixture(params=RUNS)
def context(request: pytest.FixtureRequest, make_context: MakeContext) -> RunContext:
    return make_context({**RUNS[request.param], **GPU_ONLY})


def learn_rounds(context: RunContext) -> list[dict[str, torch.Tensor]]:
    loop, states = Loop(context, GPU), []
    learner = DeviceRounds.of(context, GPU, LocalReduction(context.algorithm))
    assert learner is not None
    for _ in range(ROUNDS):
        learner.prepare(loop.round + 1)
        begun = loop.prepare()
        loop.state = learner.learn(loop.state, loop.round + 1, loop.act(begun), loop.tally)
        states.append({name: value.cpu() for name, value in everything(loop.state).items()})
    return states


def test_captured_rounds_have_the_bytes_of_eager_ones(context: RunContext, monkeypatch: pytest.MonkeyPatch):
    """Acting and learning, after each round: so a learner that restarts, eagerly, contradicts nothing."""
    captured = learn_rounds(context)
    with monkeypatch.context() as patch:
        patch.setattr(CapturedWork, "run", lambda self, work, *fixed: work())
        eager = learn_rounds(context)
    for one, other in zip(captured, eager, strict=True):
        for name, value in one.items():
            assert torch.equal(value, other[name]), name


def test_rounds_on_a_gpu_are_those_of_a_cpu(context: RunContext):
    """To float32's precision, over the first rounds."""
    expected, _ = learned_as_others_do(context)
    for found, wanted in list(zip(learn_rounds(context), expected, strict=False))[:2]:
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3, msg=name)


def test_nothing_stays_eager(context: RunContext, caplog: pytest.LogCaptureFixture):
    """Every built-in on-policy algorithm can be captured: no warning says otherwise."""
    learn_rounds(context)
    assert [record.getMessage() for record in caplog.records if "CUDA graph" in record.getMessage()] == []


def test_no_copy_is_made_within_a_captured_round(context: RunContext):
    """The profiler sees copies on the device alone, between the first step and the read of the row outputs."""
    loop = Loop(context, GPU)
    learner = DeviceRounds.of(context, GPU, LocalReduction(context.algorithm))
    assert learner is not None
    names: list[str] = []
    for _ in range(ROUNDS):
        learner.prepare(loop.round + 1)
        begun = loop.prepare()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            loop.state = learner.learn(loop.state, loop.round + 1, loop.act(begun), loop.tally)
        names = [event.name for event in seen.events() if "Memcpy" in event.name]
    across = [name for name in names if "HtoD" in name or "DtoH" in name]
    assert len(across) == 1, across
    assert "DtoH" in across[0]


def test_the_synchronisation_check_of_torch_finds_none(context: RunContext):
    """Torch raises for each operation that would make the host wait, in an eager round too."""
    loop = Loop(context, GPU)
    learner = DeviceRounds.of(context, GPU, LocalReduction(context.algorithm))
    assert learner is not None
    for _ in range(2):
        learner.prepare(loop.round + 1)
        begun = loop.prepare()
        torch.cuda.set_sync_debug_mode("default" if loop.round < 0 else "error")
        try:
            trajectories = loop.act(begun)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        loop.state = learner.learn(loop.state, loop.round, trajectories, loop.tally)


def test_work_that_reads_a_value_stays_eager(caplog: pytest.LogCaptureFixture):
    """It is done all the same, each time, and a warning says once why it is not captured."""
    total, work = torch.zeros((), device=GPU), CapturedWork("asking", GPU)

    def ask() -> None:
        total.add_(1.0 + 0.0 * total.item())

    for number in range(1, 5):
        work.run(ask)
        assert total.item() == number
    (message,) = [record.getMessage() for record in caplog.records if "asking" in record.getMessage()]
    assert "capturing" in message
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_staged_values_arrive_and_departing_ones_leave():
    """Pinned memory that is overwritten at once, and a copy that does not wait for work that was queued later."""
    staged, seen = Staged((1 << 20,), torch.float32, GPU), []
    for number in range(4):
        staged.send(torch.full((1 << 20,), float(number)))
        copied = staged.tensor.clone()
        departure = Departure(GPU)
        torch.cuda._sleep(10_000_000)
        with departure.copying():
            seen.append(copied.cpu().unique().tolist())
    assert seen == [[0.0], [1.0], [2.0], [3.0]]


def assert_equal_runs(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_a_second_process_would_learn_the_same_bytes(context: RunContext):
    """Two learners from the same start: deterministic kernels, whatever was captured when."""
    assert_equal_runs(learn_rounds(context), learn_rounds(context))
