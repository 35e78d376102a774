"""Ctrl-C and SIGTERM arrive as KeyboardInterrupt, once: at once, later or again, as the code that they meet requires.

Modules of this package are imported by every command: this one imports little.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTED_STATUS = 128 + signal.SIGINT
TERMINATED_STATUS = 128 + signal.SIGTERM
"""Statuses of a command that was stopped, as shells number them."""
_AGAIN_SECONDS = 0.05
"""A lost interrupt is repeated after so long: the code that lost it has returned by then."""


@contextmanager
def lost_interrupts_repeated() -> Iterator[None]:
    """Repeat a KeyboardInterrupt that was raised where Python can't pass it on, such as a finalizer or a callback of C.

    Python prints such an exception and goes on, so a program that was told to stop once would run to its end.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield
        return
    before = sys.unraisablehook
    changing = threading.Lock()
    lost: list[None] = []

    def take() -> bool:
        """Return whether an interrupt is lost, and forget it."""
        with changing:
            is_lost = bool(lost)
            lost.clear()
            return is_lost

    def repeat() -> None:
        time.sleep(_AGAIN_SECONDS)
        if take():
            assert main.ident is not None
            # A shell lets its background jobs ignore SIGINT.
            is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.pthread_kill(main.ident, signal.SIGTERM if is_ignored else signal.SIGINT)

    def keep(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        lost.append(None)
        # Not `threading.Thread`, whose locks the interrupted code may hold.
        _thread.start_new_thread(repeat, ())

    sys.unraisablehook = keep
    try:
        yield
    finally:
        sys.unraisablehook = before
        is_lost = take()
    if is_lost:
        raise KeyboardInterrupt


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt at once, also within `asyncio.run`, which would wait for the next `await`."""
    import asyncio

    handler = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and handler not in {signal.SIG_IGN, None}
    if not (is_ours and asyncio.events._get_running_loop()):  # noqa: SLF001  (documented; the public one raises)
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Handle SIGINT and SIGTERM that arrive meanwhile at the end.

    Where two threads import, an interrupted import may keep a lock of a module for ever.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    deferred = {number: handler for number, handler in handlers.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        deferred.clear()
    arrived: list[signal.Signals] = []
    for number in deferred:
        signal.signal(number, lambda number, _: arrived.append(signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in deferred.items():
            signal.signal(number, handler)
        for number in arrived[:1]:
            deferred[number](number, None)


@contextmanager
def terminations_raised() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, with status 143; unless it is handled or ignored already.

    Without it a run's lease is kept, a temporary folder is left, and a command that is the first process of a container
    does not end: the kernel gives such a process no signal that it does not handle.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    arrived = False

    def interrupt(*_: object) -> None:
        nonlocal arrived
        arrived = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except SystemExit as end:
        if arrived and end.code == INTERRUPTED_STATUS:
            raise SystemExit(TERMINATED_STATUS) from end
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
