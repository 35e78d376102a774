"""Prints the log records of `penstock serve` and its flow runs: an error that is raised on purpose as its lines alone.

Prefect makes the handler from `PREFECT_LOGGING_HANDLERS_CONSOLE_CLASS`, in each flow run's process too. The flow run's
page in its UI has the tracebacks as before.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

import prefect
from prefect.exceptions import ParameterTypeError
from prefect.logging.handlers import PrefectConsoleHandler

from penstock.flows.display.plain import plain
from penstock.storage.errors import PenstockError

if TYPE_CHECKING:
    import logging

_PREFECT = str(Path(prefect.__file__).parent)
_REPEATED = ("Parameter validation failed for flow", "Validation of flow parameters failed with error")
"""Beginnings of what Prefect logs before it raises `ParameterTypeError` with the same mistakes."""


class ServedConsole(PrefectConsoleHandler):
    """Prefect's console, on which an error that names its remedy is printed once, each line of it as a record.

    Prefect logs such an error two or three times on its way out of a flow run, each time with a traceback. What others
    log with an error, such as a callback, is printed as it is.
    """

    _printed: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; one of Prefect's with an error as one record a line, and once."""
        error = record.exc_info[1] if record.exc_info else None
        is_of_prefect = record.pathname.startswith(_PREFECT)
        if not is_of_prefect or not isinstance(error, PenstockError | ParameterTypeError):
            if not (is_of_prefect and record.getMessage().startswith(_REPEATED)):
                super().emit(record)
            return
        if error is self._printed:
            return
        self._printed = error
        for line in str(error).splitlines() or [type(error).__name__]:
            of_line = copy(record)
            of_line.msg, of_line.args = plain(line), ()
            of_line.exc_info = of_line.exc_text = None  # the text is kept for the next handler
            super().emit(of_line)
