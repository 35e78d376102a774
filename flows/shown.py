"""An artifact of a flow run that is replaced in place, so that a page shows one of it however often it changed."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.runtime import flow_run

from flows.identity import artifact_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger(__name__)


class ShownArtifact:
    """One artifact; `show` raises what Prefect's client raises where its server does not answer.

    Args:
        kind: of Prefect's: `progress`, `table`, `image` or `markdown`.
        key: under which the UI lists its versions, one a flow run.
        description: above it, in the UI.
        flow_run_id: of the flow run that it belongs to.
    """

    def __init__(self, kind: str, key: str, description: str, flow_run_id: str) -> None:
        self._created = ArtifactCreate(type=kind, key=key, description=description, flow_run_id=UUID(flow_run_id))
        self._id: UUID | None = None

    def show(self, data: float | str) -> None:
        """From now on it shows this: percents of progress, Markdown, the address of an image, or a table's JSON."""
        with get_client(sync_client=True) as client:
            if self._id is None:
                self._id = client.create_artifact(self._created.model_copy(update={"data": data})).id
            else:
                client.update_artifact(self._id, ArtifactUpdate(data=data))


def table_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table's data."""
    return json.dumps([dict(row) for row in rows])


def shown_table(run: str, name: str) -> Callable[[Sequence[Mapping[str, Any]]], None]:
    """A table of this flow run, as a function that shows other rows in it; it raises nothing."""
    table = ShownArtifact("table", artifact_key(run, name), name.capitalize(), str(flow_run.id))

    def show(rows: Sequence[Mapping[str, Any]]) -> None:
        try:
            table.show(table_json(rows))
        except Exception as error:  # noqa: BLE001  (whatever Prefect's server does, the work goes on)
            logger.warning("Prefect shows less than it could: %s", error)

    return show
