"""`penstock evaluate --follow`: runs the evaluation flow where there is a Prefect server, and its work without one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.flows.cli.drive import flush_prefect, quieten_prefect
from penstock.flows.cli.prefect_server import require_prefect
from penstock.flows.display.console import Panel, use_panel
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _EvaluationPanel(Panel):
    """Passes each evaluation of the flow to a callback."""

    def __init__(self, show: Callable[[Mapping[str, float]], None]) -> None:
        self._show = show

    def evaluation(self, result: Mapping[str, float]) -> None:
        self._show(result)


def follow(
    store: str, run: str, episodes: int, key: int, idle_seconds: float, show: Callable[[Mapping[str, float]], None]
) -> None:
    """Evaluate every commit of a run as it comes; `show` gets each result.

    With `PREFECT_API_URL` this is a flow run. Without, no server is started for it: the server of `penstock train` on
    this machine needs its database exclusively.

    Raises:
        RunNotFoundError: no run has that name.
        PenstockError: no server answers at `PREFECT_API_URL`.
        RunIdleError: the run is unfinished, and no stage was committed for `idle_seconds` after the newest evaluation.
    """
    folder = RunFolder(open_store(store), run)
    folder.load()
    if "PREFECT_API_URL" in os.environ:
        require_prefect(os.environ["PREFECT_API_URL"])
        quieten_prefect()
        use_panel(_EvaluationPanel(show))
        from penstock.flows.evaluate import evaluate

        try:
            evaluate(run, store, episodes, key, idle_seconds)
        finally:
            flush_prefect()
        return
    from penstock.tasks.analysis.evaluation import commits_to_evaluate, evaluate_commit

    for commit in commits_to_evaluate(folder, episodes, key, idle_seconds):
        show(evaluate_commit(folder, commit, episodes, key))
