"""What every algorithm's settings have."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from tasks.settings import Settings

Widths = tuple[Annotated[int, Field(ge=1)], ...]
"""Widths of hidden layers."""


class AlgorithmSettings(Settings):
    """What every algorithm's settings have."""

    row_columns: ClassVar[tuple[str, ...]] = ("action",)
    """Names of the columns that the algorithm adds to a shard."""
    later: ClassVar[tuple[str, ...]] = ()
    """Names of settings that came later: left out of the identity at their defaults, so that older runs keep theirs."""

    several_agents: ClassVar[bool | None] = False
    """Whether the algorithm learns from an environment of several agents with a reward each, or from one reward; None
    if it knows itself, by `EnvironmentSpec.agents`."""

    action_kinds: ClassVar[tuple[str, ...]] = ("discrete", "box")
    """What it can choose between: one of some choices, vectors, or both."""

    name: str

    def identity(self) -> dict[str, Any]:
        """What of it is part of a run's identity."""
        unset = {name for name in self.later if getattr(self, name) == type(self).model_fields[name].default}
        return self.model_dump(mode="json", exclude=unset)

    def check_round(self, rows: int) -> None:
        """Refuse settings that a round of so many rows does not allow.

        Raises:
            ValueError: says which, and what would be right.
        """


def check_minibatches(minibatches: int, rows: int) -> None:
    """For algorithms that share a round's rows out between minibatches; raises as `check_round`."""
    if minibatches > rows:
        raise ValueError(
            f"algorithm.minibatches = {minibatches}, but a round has only {rows} rows "
            f"(environment.num_envs x schedule.round_steps)"
        )


def check_window(window_rows: int, warm_up_rows: int, rows: int) -> None:
    """For algorithms that learn from a window of whole rounds; raises as `check_round`."""
    if window_rows < rows:
        raise ValueError(
            f"algorithm.window_rows = {window_rows}, but a round alone has {rows} rows (environment.num_envs x "
            f"schedule.round_steps)"
        )
    held = window_rows // rows * rows
    if warm_up_rows > held:
        raise ValueError(
            f"algorithm.warm_up_rows = {warm_up_rows}, but the window never has more than {held} rows, so learning "
            f"would never begin; the window holds whole rounds of {rows} rows, up to algorithm.window_rows = "
            f"{window_rows}"
        )
