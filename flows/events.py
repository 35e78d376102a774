"""Events of runs on Prefect's server, for automations: what they are called, whose they are, and what they say.

They are sent over the API, as artifacts are, and not through Prefect's own queue of events: that one keeps what could
not be sent, and the flow's process then waits at its end, for each, for a server that is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import get_client
from prefect.events.schemas.events import Event, RelatedResource, Resource

from flows.summary import stage_return

if TYPE_CHECKING:
    from collections.abc import Mapping

STAGE_COMMITTED = "penstock.stage.committed"
SNAPSHOT_PUBLISHED = "penstock.snapshot.published"
"""Once a stage, of its last snapshot."""
RUN_STALLED = "penstock.run.stalled"


class RunEvents:
    """Sends the events of one run; all methods raise what Prefect's client raises where its server does not answer.

    Each event's resource has the labels `penstock.run` and `penstock.store`; the flow run that drives is related.

    Args:
        run: name of the run.
        store: that holds it; where it is a folder, its whole path, so that whoever hears of it finds it.
        flow_run: `flow_run_id`, `flow_run_name` and `flow_name` of the flow run that drives it.
    """

    def __init__(self, run: str, store: str, flow_run: Mapping[str, str | None]) -> None:
        self._who = {"run": run, "store": store}
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

    def committed(self, commit: Mapping[str, Any]) -> None:
        """A stage was committed, and with it a snapshot is there for good."""
        stage = self._event(
            STAGE_COMMITTED,
            {
                "stage": commit["stage"],
                "version": commit["version"],
                "env_steps": commit["env_steps"],
                "return": stage_return(commit),
                "finished": commit["finished"],
            },
        )
        newest = commit["snapshots"][-1]
        snapshot = self._event(
            SNAPSHOT_PUBLISHED, {"version": newest["version"], "stage": commit["stage"], "snapshot": newest["name"]}
        )
        snapshot.follows = stage.id
        _send([stage, snapshot])

    def stalled(self, idle_seconds: float, stage: int, round_: int | None) -> None:
        """Nothing was learned for a while; `round_` is the last one that was, None if none was since the flow began."""
        _send([self._event(RUN_STALLED, {"idle_seconds": idle_seconds, "stage": stage, "round": round_})])

    def _event(self, name: str, payload: dict[str, Any]) -> Event:
        return Event(event=name, resource=self._resource, related=self._related, payload={**self._who, **payload})


def _send(events: list[Event]) -> None:
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[event.model_dump(mode="json") for event in events])
