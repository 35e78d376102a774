"""Emits events of runs on Prefect's server, for automations: their names, resources and payloads.

Events are sent over the API, as artifacts are, and not through Prefect's own event queue: the queue keeps undelivered
events, and the flow's process then waits at its end, once per event, for a server that is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect.client.orchestration import get_client
from prefect.events.schemas.events import Event, RelatedResource, Resource

from penstock.flows.display.summary import stage_return

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.runs.commit_schema import Commit

STAGE_COMMITTED = "penstock.stage.committed"
SNAPSHOT_PUBLISHED = "penstock.snapshot.published"
"""Sent once per stage, for its last snapshot."""
RUN_STALLED = "penstock.run.stalled"


class RunEvents:
    """Sends the events of one run; all methods raise the errors of Prefect's client where its server does not answer.

    Each event's resource has the labels `penstock.run` and `penstock.store`; the flow run that drives is related.

    Args:
        run: name of the run.
        store: address of the store; for a folder its full path, so that any receiver finds it.
        flow_run: `flow_run_id`, `flow_run_name` and `flow_name` of the flow run that drives it.
    """

    def __init__(self, run: str, store: str, flow_run: Mapping[str, str | None]) -> None:
        self._labels = {"run": run, "store": store}
        self._resource = Resource(
            {
                "prefect.resource.id": f"penstock.run.{store}/{run}",
                "prefect.resource.name": run,
                "penstock.run": run,
                "penstock.store": store,
            }
        )
        self._related = [
            RelatedResource(
                {
                    "prefect.resource.id": f"prefect.flow-run.{flow_run['flow_run_id']}",
                    "prefect.resource.role": "flow-run",
                    "prefect.resource.name": flow_run["flow_run_name"] or "",
                }
            )
        ]

    def committed(self, commit: Commit) -> None:
        """Send the events of a committed stage and of its snapshot, which is permanent now."""
        stage = self._event(
            STAGE_COMMITTED,
            {
                "stage": commit.stage,
                "version": commit.version,
                "env_steps": commit.env_steps,
                "return": stage_return(commit),
                "finished": commit.finished,
            },
        )
        newest = commit.snapshots[-1]
        snapshot = self._event(
            SNAPSHOT_PUBLISHED, {"version": newest.version, "stage": commit.stage, "snapshot": newest.name}
        )
        snapshot.follows = stage.id
        _send([stage, snapshot])

    def stalled(self, idle_seconds: float, stage: int, round_: int | None) -> None:
        """Send the stall event; `round_` is the last round learned since the flow began, None if there is none."""
        _send([self._event(RUN_STALLED, {"idle_seconds": idle_seconds, "stage": stage, "round": round_})])

    def _event(self, name: str, payload: Mapping[str, object]) -> Event:
        return Event(event=name, resource=self._resource, related=self._related, payload={**self._labels, **payload})


def _send(events: list[Event]) -> None:
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[event.model_dump(mode="json") for event in events])
