"""What every algorithm's settings have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from storage.errors import ConfigError
from tasks.settings import Settings

if TYPE_CHECKING:
    from native import EnvironmentSpec

Widths = tuple[Annotated[int, Field(ge=1)], ...]
"""Widths of hidden layers."""


class AlgorithmSettings(Settings):
    """What every algorithm's settings have."""

    row_columns: ClassVar[tuple[str, ...]] = ("action",)
    """Names of the columns that the algorithm always adds to a shard."""
    later: ClassVar[tuple[str, ...]] = ()
    """Names of settings that came later: left out of the identity at their defaults, so that older runs keep theirs."""

    several_agents: ClassVar[bool | None] = False
    """Whether the algorithm learns from an environment of several agents with a reward each, or from one reward; None
    if it knows itself, by `EnvironmentSpec.agents`."""

    action_kinds: ClassVar[tuple[str, ...]] = ("discrete", "box")
    """What it can choose between: one of some choices, vectors, or both."""

    learns_from_window: ClassVar[bool] = False
    """Whether it learns from rows of many rounds; of one's own algorithm, `tasks.own_probe` knows."""

    name: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the algorithm adds to a shard, as it is set."""
        return self.row_columns

    @property
    def row_steps(self) -> int:
        """Steps of an environment that a training row has."""
        return 1

    def identity(self) -> dict[str, Any]:
        """What of it is part of a run's identity."""
        unset = {name for name in self.later if getattr(self, name) == type(self).model_fields[name].default}
        return self.model_dump(mode="json", exclude=unset)

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse an environment, as its pool describes it, that the algorithm can't learn from.

        Raises:
            ConfigError: says why, and what to choose.
        """
        agents = environment["agents"]
        if self.several_agents in (None, bool(agents)):
            return
        has, choose = (
            (f"{agents} agents with a reward each", "mappo or ippo, or an environment without an agent axis")
            if agents
            else ("one reward and no agent axis", "ppo or impala, or an environment with an agent axis")
        )
        raise ConfigError(
            f"environment: {environment['id']} has {has}, which {self.name} can't learn from; choose {choose}"
        )

    def check_round(self, rows: int) -> None:
        """Refuse settings that a round of so many rows does not allow.

        Raises:
            ValueError: says which, and what would be right.
        """


def check_minibatches(minibatches: int, rows: int, row_steps: int = 1) -> None:
    """For algorithms that share a round's rows out between minibatches; raises as `check_round`."""
    if minibatches > rows:
        raise ValueError(
            f"algorithm.minibatches = {minibatches}, but a round has only {rows} rows (environment.num_envs x "
            f"schedule.round_steps{' / algorithm.sequence_steps' if row_steps > 1 else ''})"
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
