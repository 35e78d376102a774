"""The terminal of `penstock serve` has an error that is raised on purpose as its lines, and others with a traceback."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import prefect
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


def log(logger: logging.Logger, message: str, *args: Any, of: str = prefect.__file__) -> None:
    """Log an error as a program at that path does, with the exception that is being handled."""
    error = sys.exc_info() if sys.exc_info()[1] else None
    logger.handle(logger.makeRecord(logger.name, logging.ERROR, of, 1, message, args, error))


def fail(error: Exception) -> None:
    raise error from KeyError("cause")


def printed(*errors: Exception) -> list[str]:
    """Return the lines that a flow run's process prints when these errors leave it, as Prefect 3 logs each."""
    with logged() as (logger, stream):
        for error in errors:
            try:
                fail(error)
            except Exception:  # noqa: BLE001  (Prefect logs every error)
                log(logger, "Encountered exception during execution")
                log(logger, "Engine execution exited with unexpected exception")
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


def test_what_others_log_with_such_an_error_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]):
    """A callback's record keeps its own words and its traceback; a mistaken record raises nothing in its program."""
    with logged() as (logger, stream):
        try:
            fail(ConfigError("num_envs = 'many': a number"))
        except ConfigError:
            log(logger, "the artifact could not be published", of=__file__)
        lines = stream.getvalue().splitlines()
    mistaken = logger.makeRecord(logger.name, logging.ERROR, __file__, 1, "%d of %d", (1,), None)
    ServedConsole(io.StringIO()).handle(mistaken)
    assert lines[0] == "the artifact could not be published"
    assert "Traceback (most recent call last):" in lines
    assert "not enough arguments for format string" in capsys.readouterr().err


def test_an_error_without_a_text_is_named():
    """By its class."""
    assert printed(ConfigError("")) == ["ConfigError"]


def test_what_prefect_says_of_the_same_mistakes_is_left_out():
    """Before it raises the error; everything else is printed as it is."""
    with logged() as (logger, stream):
        log(logger, "%s %s", "Validation of flow parameters failed with error:", "Flow run received invalid ones")
        log(logger, "something else")
        assert stream.getvalue() == "something else\n"


def test_prefect_takes_it_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    """So every flow run's process has it, whose environment is that of `penstock serve`."""
    monkeypatch.setenv(*CONSOLE_CLASS)
    console = load_logging_config(DEFAULT_LOGGING_SETTINGS_PATH)["handlers"]["console"]
    assert console["class"] == f"{ServedConsole.__module__}.{ServedConsole.__name__}"
