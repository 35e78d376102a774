"""Sends a run's curves to Weights & Biases, online or into the files of its offline mode."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import wandb

from penstock.flows.observers.tracking.tracker import Tracker
from penstock.flows.observers.tracking.wandb_files import last_step
from penstock.flows.observers.tracking.wandb_mode import is_offline
from penstock.flows.report.scalars import stage_scalars
from penstock.flows.settings.listing import flat_settings

if TYPE_CHECKING:
    from penstock.flows.observers.callbacks.records import RunEnd, RunStart, StageRecord
    from penstock.flows.observers.tracking.outcome import Outcome, OutcomeMaker

_STEPS = "progress/env_steps"
_INIT_SECONDS = 30.0


class WandbTracker(Tracker):
    """Sends the run as the W&B run of its id; W&B's step is the stage, and the axis of all curves is env_steps.

    Online, the service says which stage it lacks; offline, the files of earlier drives in the working directory do.
    """

    def __init__(self, name: str, outcomes: OutcomeMaker, project: str) -> None:
        super().__init__(name, outcomes)
        self._project = project
        self._run: Any = None

    def open(self, start: RunStart) -> int:
        """Open the W&B run of the run's id, or continue it."""
        self._run = wandb.init(
            project=self._project,
            id=start.id,
            name=start.run,
            config=flat_settings(start.settings),
            resume=None if is_offline() else "allow",  # offline it is ignored, with a warning
            reinit="create_new",  # another run of this process is another record
            settings=wandb.Settings(
                silent=True, console="off", save_code=False, disable_code=True, init_timeout=_INIT_SECONDS
            ),
        )
        self._run.define_metric(_STEPS, hidden=True)
        self._run.define_metric("*", step_metric=_STEPS)
        if not is_offline():
            return int(self._run.starting_step)
        folder = Path(self._run.dir).parents[1]
        return max(_first_stage(folder, start), last_step(folder, start.id) + 1)

    def add(self, record: StageRecord) -> None:
        """Send the values of a stage as one step."""
        self._run.log({**stage_scalars(record), _STEPS: record.env_steps}, step=record.stage, commit=True)

    def add_outcome(self, outcome: Outcome) -> None:
        """Send the clip and the report as media of the summary, which has no step."""
        with TemporaryDirectory() as folder:
            media: dict[str, Any] = {"report": wandb.Html(outcome.report.decode(), inject=False)}
            if outcome.clip is not None:
                clip = Path(folder) / "clip.gif"
                clip.write_bytes(outcome.clip)
                media["episode/evaluation"] = wandb.Video(str(clip), format="gif")
            for name, value in media.items():
                self._run.summary[name] = value

    def close(self, end: RunEnd) -> None:
        """Finish the W&B run; it counts as failed if the run was stopped by an error."""
        self._run.finish(exit_code=0 if end.error is None else 1)


def _first_stage(folder: Path, start: RunStart) -> int:
    """Return the first stage that this folder's files of the run have to have; those before are in other folders."""
    file = folder / f"penstock-{start.id}.json"
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["first_stage"])
    except (OSError, ValueError, KeyError, TypeError):
        file.write_text(json.dumps({"run": start.run, "first_stage": start.next_stage}), encoding="utf-8")
        return start.next_stage
