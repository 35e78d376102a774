"""Restarts an embedded Prefect server that has ended or gives no answer, as long as deployments are served.

Flow runs go on meanwhile: Prefect's client repeats what got no answer, and the database keeps what was recorded.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.storage.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.flows.api.prefect_server import PrefectServer

logger = logging.getLogger(__name__)

_SILENT_SECONDS = 30.0
"""Half of the time for which Prefect's client waits for an answer (`PREFECT_API_REQUEST_TIMEOUT`): it gets one."""
_START_SECONDS = 120.0
_POLL_SECONDS = 5.0


@contextmanager
def kept_answering(
    server: PrefectServer, silent_seconds: float = _SILENT_SECONDS, poll_seconds: float = _POLL_SECONDS
) -> Iterator[None]:
    """Watch a server that is ready, in a thread, and restart it if it ends or stays silent.

    Args:
        server: the server.
        silent_seconds: time without an answer after which it is killed.
        poll_seconds: time between two questions.
    """
    over = threading.Event()

    def watch() -> None:
        answered, patience_seconds = time.monotonic(), silent_seconds
        while not over.wait(poll_seconds):
            if server.answers():
                answered, patience_seconds = time.monotonic(), silent_seconds
                continue
            silence_seconds, status = time.monotonic() - answered, server.exit_status
            if over.is_set() or (status is None and silence_seconds < patience_seconds):
                continue
            found = f"gave no answer for {silence_seconds:.0f} s" if status is None else f"ended with status {status}"
            try:
                said = server.restart()
            except PenstockError as error:
                logger.warning("Prefect's server %s and can't be restarted: %s", found, error)
                continue
            logger.warning("Prefect's server %s and is restarted. It said last:\n%s", found, said or "nothing")
            answered, patience_seconds = time.monotonic(), _START_SECONDS

    watching = threading.Thread(target=watch, name="prefect-watch", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
