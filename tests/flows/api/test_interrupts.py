"""A Ctrl-C that Python can't pass on is not lost."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from penstock.flows.api.interrupts import lost_interrupts_repeated


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
