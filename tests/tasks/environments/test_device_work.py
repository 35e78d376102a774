"""Work, staged inputs and departing results on a CPU: every run is the work itself, every copy a plain one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.tasks.environments.torch.device_work import CapturedWork, Departure, Staged, _are_same

from ...support.algorithms.distant_device import DISTANT, DistantDevice

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")


def test_work_is_done_in_each_run():
    """Whatever it depends on, and also if it fails: then the error is the work's own."""
    done: list[int] = []
    work = CapturedWork("counting", CPU)
    for number in range(3):
        work.run(lambda: done.append(len(done)), number)
    assert done == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        work.run(lambda: done.append(1 // 0))


class Graphless(CapturedWork):
    """Work on a GPU that is not there: keeps what would be captured, and replays it by calling it."""

    def __init__(self, *, refuse: bool = False) -> None:
        super().__init__("counting", torch.device("cuda"))
        self.refuse = refuse
        self.log: list[str] = []

    def _run_aside(self, work: Callable[[], None]) -> None:
        self.log.append("aside")
        work()

    def _captured(self, work: Callable[[], None]) -> Any:
        self.log.append("capture")
        return None if self.refuse else self

    def replay(self) -> None:
        self.log.append("replay")


def test_work_is_captured_once_it_was_done_and_again_if_it_changed():
    """Every run is done once, eagerly or as a replay; a capture itself does nothing."""
    work, tensor = Graphless(), torch.zeros(2)
    for _ in range(3):
        work.run(lambda: work.log.append("work"), tensor)
    assert work.log == ["aside", "work", "capture", "replay", "replay"]
    work.log.clear()
    for _ in range(2):
        work.run(lambda: work.log.append("work"), tensor.clone())
    assert work.log == ["aside", "work"] * 2
    for _ in range(2):
        work.run(lambda: work.log.append("work"), tensor)
    assert work.log[4:] == ["aside", "work", "capture", "replay"]


def test_work_that_cannot_be_captured_is_done_eagerly():
    """One attempt is made, and no run is lost."""
    work = Graphless(refuse=True)
    for _ in range(4):
        work.run(lambda: work.log.append("work"))
    assert work.log == ["aside", "work", "capture", "work", "work", "work"]


def test_a_capture_holds_while_its_tensors_are_the_same():
    """Tensors by identity, whatever they contain; other values by equality."""
    one, other = torch.zeros(2), torch.zeros(2)
    assert _are_same((one, (3, 4)), (one, (3, 4)))
    assert not _are_same((one,), (other,))
    assert not _are_same((one, (3, 4)), (one, (3, 5)))
    assert not _are_same((one,), (one, one))
    assert not _are_same((one,), (0,))


def test_a_staged_tensor_gets_new_content_in_place():
    """The tensor stays; the values may be overwritten by the next ones at once."""
    staged, values = Staged((2, 3), torch.int64, CPU), torch.arange(6).view(2, 3)
    tensor = staged.tensor
    assert not tensor.any()
    for _ in range(2):
        staged.send(values.T.contiguous().T)
        assert staged.tensor is tensor
        assert torch.equal(tensor, values)
        values += 1
        assert not torch.equal(tensor, values)


def test_staging_is_one_copy_to_the_device():
    with DistantDevice() as device:
        staged = Staged((4,), torch.float32, DISTANT)
        staged.send(torch.ones(4))
    assert [crossing.what for crossing in device.crossings] == ["copy_ to the device"]


def test_another_thread_copies_what_departs():
    tensor = torch.arange(4)
    departure = Departure(CPU)

    def copied() -> list[int]:
        with departure.copying():
            found: list[int] = tensor.tolist()
            return found

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(copied).result() == [0, 1, 2, 3]
