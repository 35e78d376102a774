"""What a person sees while a run goes on: a live line on a terminal, a line a stage elsewhere, a result at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.text import Text

from flows.summary import stage_row, told_return

if TYPE_CHECKING:
    from rich.console import Console

    from tasks.training import Training


class Panel:
    """Shows nothing: what a flow run without a terminal has. Subclasses show something; all methods are quick."""

    def note(self, text: str) -> None:
        """Something that takes a while has begun or ended."""

    def warn(self, text: str) -> None:
        """Something that a person should know, though the run goes on."""

    def begin(self, training: Training) -> None:
        """The run starts, or goes on."""

    def progress(self, event: dict[str, Any]) -> None:
        """A round was learned."""

    def stage(self, commit: dict[str, Any], timings: dict[str, Any]) -> None:
        """A stage was committed."""

    def evaluation(self, result: dict[str, Any]) -> None:
        """A commit was evaluated beside training."""

    def end(self) -> None:
        """Nothing more will come."""


class LivePanel(Panel):
    """A line that changes in place on a terminal, and a line that stays for every stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text(""), console=console, refresh_per_second=8, transient=True)
        self._started = time.perf_counter()
        self._base_env_steps = 0
        self._stage = 0
        self._stage_started = time.perf_counter()
        self._rounds_per_stage = 1
        if console.is_terminal:
            self._live.start()

    def note(self, text: str) -> None:
        """Shown at once, with the time since the command."""
        line = Text(f"{time.perf_counter() - self._started:6.1f} s  {text}")
        if self._console.is_terminal:
            self._live.update(line)
        else:
            self._console.print(line)

    def warn(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"warning: {text}", style="yellow", highlight=False)

    def begin(self, training: Training) -> None:
        """Say what runs, and from where it goes on."""
        newest = training.newest
        self._rounds_per_stage = training.config.schedule.rounds_per_stage
        self._base_env_steps = newest["env_steps"] if newest else 0
        self._stage = newest["stage"] + 1 if newest else 0
        self._stage_started = time.perf_counter()
        start = f"goes on from stage {self._stage}" if newest else "starts"
        self._console.print(
            f"run {training.run.name} {start}: {training.config.story}", highlight=False, soft_wrap=True
        )
        if training.why:
            self._console.print(f"policy {training.config.placement.policy}: {training.why}", highlight=False)

    def progress(self, event: dict[str, Any]) -> None:
        """The live line."""
        if not self._console.is_terminal:
            return
        seconds = time.perf_counter() - self._stage_started
        episode_return = "  ..." if event["episode_return"] is None else f"{told_return(event['episode_return'])}"
        round_ = event["round"] % self._rounds_per_stage + 1
        self._live.update(
            Text(
                f"stage {self._stage}  round {round_}/{self._rounds_per_stage}  "
                f"{self._base_env_steps + event['env_steps']:,} env steps  {event['env_steps'] / seconds:,.0f}/s  "
                f"return {episode_return}  learner waits {event['wait_share']:.0%}{_missed(event['missed_shards'])}  "
                f"{event['queue_depth']:.1f} shards ahead  lag {event['lag']}"
            )
        )

    def stage(self, commit: dict[str, Any], timings: dict[str, Any]) -> None:
        """A line that stays."""
        row = stage_row(commit, timings)
        shown = {name: "-" if value is None else value for name, value in row.items()}
        self._console.print(
            f"stage {shown['stage']:>3}  {shown['env steps']:>9,} env steps  {shown['steps/s']:>7,}/s  "
            f"return {shown['return']:>7}  evaluation {shown['evaluation']:>7}  "
            f"learner waits {row['wait share'] or 0:>4.0%}{_missed(row.get('missed shards', 0))}  "
            f"{shown['seconds']:.2f} s",
            highlight=False,
        )
        self._base_env_steps = commit["env_steps"]
        self._stage = commit["stage"] + 1
        self._stage_started = time.perf_counter()

    def end(self) -> None:
        """Leave the terminal as it was."""
        if self._console.is_terminal:
            self._live.stop()


def _missed(shards: int) -> str:
    return f", misses {shards} shards" if shards else ""


_panels: list[Panel] = [Panel()]


def current_panel() -> Panel:
    """The panel of this process."""
    return _panels[-1]


def use_panel(panel: Panel) -> None:
    """Show from now on what flows in this process do."""
    _panels.append(panel)
