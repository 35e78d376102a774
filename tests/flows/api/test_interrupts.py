"""A Ctrl-C that Python can't pass on is not lost, one that must wait comes later, and SIGTERM does what Ctrl-C does."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from penstock.flows.api.interrupts import interrupts_deferred, lost_interrupts_repeated, terminations_raised


class Interrupted:
    """A Ctrl-C arrives in its finalizer, where Python only prints exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_finalizer_is_raised_again_while_the_program_waits():
    """It reaches a main thread that is blocked, once."""
    with lost_interrupts_repeated():
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (the interrupt is raised by what follows the first line)
            Interrupted()
            threading.Event().wait(60)
        threading.Event().wait(0.2)


def test_an_interrupt_that_is_still_lost_at_the_end_is_raised_there():
    with pytest.raises(KeyboardInterrupt), lost_interrupts_repeated():
        Interrupted()
    threading.Event().wait(0.2)


def test_an_interrupt_that_is_still_lost_leaves_an_error_as_it_is():
    def fail() -> None:
        Interrupted()
        raise ValueError("the body's")

    with pytest.raises(ValueError, match="the body's"), lost_interrupts_repeated():
        fail()
    threading.Event().wait(0.2)


def test_other_errors_of_finalizers_are_left_to_python(monkeypatch):
    class Failing:
        def __del__(self) -> None:
            raise ValueError("in a finalizer")

    printed: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: printed.append(str(unraisable.exc_value)))
    with lost_interrupts_repeated():
        Failing()
    assert printed == ["in a finalizer"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_deferred_signal_arrives_at_the_end(number):
    work: list[str] = []

    def do() -> None:
        signal.raise_signal(number)
        work.append("done")

    with pytest.raises(KeyboardInterrupt), terminations_raised(), interrupts_deferred():
        do()
    assert work == ["done"]


@pytest.mark.parametrize(("status", "becomes"), [(130, 143), (1, 1), (0, 0)])
def test_a_command_that_sigterm_stops_has_the_status_of_sigterm(status, becomes):
    """A command answers an interrupt with a status; one that ends otherwise keeps its own."""

    def stop() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            sys.exit(status)

    with pytest.raises(SystemExit) as ended, terminations_raised():
        stop()
    assert ended.value.code == becomes
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_command_that_ctrl_c_stops_has_its_status():
    with pytest.raises(SystemExit) as ended, terminations_raised():
        sys.exit(130)
    assert ended.value.code == 130


def test_a_program_that_handles_sigterm_itself_keeps_its_handler():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminations_raised():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
