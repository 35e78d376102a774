"""Artifacts of a flow run that are updated in place, so that its page shows one version of each."""

from __future__ import annotations

import json
import logging
import math
import time
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.runtime import flow_run

from penstock.flows.display.naming import artifact_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger(__name__)


class LiveArtifact:
    """One artifact; `show` and `refresh` raise the errors of Prefect's client where its server does not answer.

    Prefect keeps the whole content of each update as an event, so content that changes often is offered, and shown at
    intervals.

    Args:
        kind: Prefect's kind: `progress`, `table`, `image` or `markdown`.
        key: the UI lists versions under it, one per flow run.
        description: text above the artifact in the UI.
        flow_run_id: the flow run that it belongs to.
    """

    def __init__(self, kind: str, key: str, description: str, flow_run_id: str) -> None:
        self._created = ArtifactCreate(type=kind, key=key, description=description, flow_run_id=UUID(flow_run_id))
        self._id: UUID | None = None
        self._offered: Callable[[], float | str] | None = None
        self._next = 0.0

    def offer(self, content: Callable[[], float | str]) -> None:
        """Let the next `refresh` show content, in place of what was offered before."""
        self._offered = content

    def due_seconds(self) -> float:
        """Return the seconds until `refresh` has something to show; infinity if nothing is offered."""
        return math.inf if self._offered is None else max(0.0, self._next - time.monotonic())

    def refresh(self, interval_seconds: float = 0.0) -> None:
        """Show what was offered last, if any, and show nothing else for a while."""
        if self._offered is not None:
            content, self._offered = self._offered, None
            self._next = time.monotonic() + interval_seconds
            self.show(content())

    def show(self, data: float | str) -> None:
        """Replace the content: percents of progress, Markdown, the address of an image, or a table's JSON."""
        with get_client(sync_client=True) as client:
            if self._id is None:
                self._id = client.create_artifact(self._created.model_copy(update={"data": data})).id
            else:
                client.update_artifact(self._id, ArtifactUpdate(data=data))


def table_json(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as a table's data."""
    return json.dumps([dict(row) for row in rows])


def table_artifact(run: str, name: str) -> Callable[[Sequence[Mapping[str, object]]], None]:
    """Create a table of this flow run; return a function that replaces its rows and raises nothing."""
    show = _safely_shown(LiveArtifact("table", artifact_key(run, name), name.capitalize(), str(flow_run.id)))
    return lambda rows: show(table_json(rows))


def markdown_artifact(run: str, name: str, description: str) -> Callable[[str], None]:
    """Create a text of this flow run; return a function that replaces it and raises nothing."""
    return _safely_shown(LiveArtifact("markdown", artifact_key(run, name), description, str(flow_run.id)))


def _safely_shown(artifact: LiveArtifact) -> Callable[[str], None]:
    def show(data: str) -> None:
        try:
            artifact.show(data)
        except Exception as error:  # noqa: BLE001  (a failure of Prefect's server must not stop the work)
            logger.warning("could not update an artifact in Prefect: %s", error)

    return show
