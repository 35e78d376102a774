"""`penstock evaluate --follow`: the evaluation flow where there is a Prefect server, and its work without one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flows.console import Panel, use_panel
from flows.drive import flush_prefect, quieten_prefect
from flows.server import require_prefect
from storage.run import RunFolder
from storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable


class _Shown(Panel):
    def __init__(self, show: Callable[[dict[str, Any]], None]) -> None:
        self._show = show

    def evaluation(self, result: dict[str, Any]) -> None:
        self._show(result)


def follow(
    store: str, run: str, episodes: int, key: int, idle_seconds: float, show: Callable[[dict[str, Any]], None]
) -> None:
    """Evaluate every commit of a run as it comes; `show` gets each result.

    At `PREFECT_API_URL` it is a flow run. Without, no server is started for it: that of `penstock train` on this
    machine has its database to itself.

    Raises:
        RunNotFoundError: there is none of that name.
        PenstockError: nobody answers at `PREFECT_API_URL`.
        RunIdleError: it is not finished, and nothing was committed for `idle_seconds` after the newest evaluation.
    """
    folder = RunFolder(open_store(store), run)
    folder.load()
    if "PREFECT_API_URL" in os.environ:
        require_prefect(os.environ["PREFECT_API_URL"])
        quieten_prefect()
        use_panel(_Shown(show))
        from flows.evaluate import evaluate

        try:
            evaluate(run, store, episodes, key, idle_seconds)
        finally:
            flush_prefect()
        return
    from tasks.evaluations import commits_to_evaluate, evaluate_commit

    for commit in commits_to_evaluate(folder, episodes, key, idle_seconds):
        show(evaluate_commit(folder, commit, episodes, key))
