"""The terminal of `penstock serve` has an error that is raised on purpose as its lines, and others with a traceback."""

from __future__ import annotations

import io
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prefect.exceptions import ParameterTypeError
from prefect.logging.configuration import DEFAULT_LOGGING_SETTINGS_PATH, load_logging_config

from penstock.flows.cli.serve import CONSOLE_CLASS
from penstock.flows.display.served_console import ServedConsole
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@contextmanager
def logged() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """Yield a logger, and the terminal of its records, which another handler has formatted before."""
    stream, logger = io.StringIO(), logging.getLogger(f"{__name__}.served")
    logger.propagate = False
    handlers = [logging.StreamHandler(io.StringIO()), ServedConsole(stream)]
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield logger, stream
    finally:
        for handler in handlers:
            logger.removeHandler(handler)


def fail(error: Exception) -> None:
    raise error from KeyError("cause")


def printed(*errors: Exception) -> list[str]:
    """Return the lines that a flow run's process prints when these errors leave it, as Prefect 3 logs each."""
    with logged() as (logger, stream):
        for error in errors:
            try:
                fail(error)
            except Exception:
                logger.exception("Encountered exception during execution")
                logger.exception("Engine execution exited with unexpected exception")
        return stream.getvalue().splitlines()


def test_an_error_raised_on_purpose_is_printed_once_line_by_line():
    """Without the tracebacks; control characters of what it quotes are written out. The next error is another one."""
    mistakes = ConfigError("num_envs = 'many': a number\nname = '\x1b[1m': a name")
    assert printed(mistakes, ConfigError("again"), ParameterTypeError("not valid:\n - config.seed")) == [
        "num_envs = 'many': a number",
        "name = '\\x1b[1m': a name",
        "again",
        "not valid:",
        " - config.seed",
    ]


def test_any_other_error_keeps_its_traceback():
    """It is a fault of a program, which somebody has to find."""
    lines = printed(ValueError("a fault"))
    assert "ValueError: a fault" in lines
    assert "Traceback (most recent call last):" in lines


def test_what_prefect_says_of_the_same_mistakes_is_left_out():
    """Before it raises the error; everything else is printed as it is."""
    with logged() as (logger, stream):
        logger.error("%s %s", "Validation of flow parameters failed with error:", "Flow run received invalid ones")
        logger.error("something else")
        assert stream.getvalue() == "something else\n"


def test_prefect_takes_it_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    """So every flow run's process has it, whose environment is that of `penstock serve`."""
    monkeypatch.setenv(*CONSOLE_CLASS)
    console = load_logging_config(DEFAULT_LOGGING_SETTINGS_PATH)["handlers"]["console"]
    assert console["class"] == f"{ServedConsole.__module__}.{ServedConsole.__name__}"
