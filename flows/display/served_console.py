"""Prints the log records of `penstock serve` and its flow runs: an error that is raised on purpose as its lines alone.

Prefect makes the handler from `PREFECT_LOGGING_HANDLERS_CONSOLE_CLASS`, in each flow run's process too. The flow run's
page in its UI has the tracebacks as before.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from prefect.exceptions import ParameterTypeError
from prefect.logging.handlers import PrefectConsoleHandler

from penstock.flows.display.plain import plain
from penstock.storage.errors import PenstockError

if TYPE_CHECKING:
    import logging

_REPEATED = ("Parameter validation failed for flow", "Validation of flow parameters failed with error")
"""Beginnings of what Prefect logs before it raises `ParameterTypeError` with the same mistakes."""


class ServedConsole(PrefectConsoleHandler):
    """Prefect's console, on which an error that names its remedy is printed once, each line of it as a record.

    Prefect logs such an error two or three times on its way out of a flow run, each time with a traceback.
    """

    _printed: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; one with an error as one record a line, unless the record before it had the same error."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, PenstockError | ParameterTypeError):
            if not record.getMessage().startswith(_REPEATED):
                super().emit(record)
            return
        if error is self._printed:
            return
        self._printed = error
        for line in str(error).splitlines():
            of_line = copy(record)
            of_line.msg, of_line.args = plain(line), ()
            of_line.exc_info = of_line.exc_text = None  # the text is kept for the next handler
            super().emit(of_line)
