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

    name: str

    def identity(self) -> dict[str, Any]:
        """What of it is part of a run's identity."""
        unset = {name for name in self.later if getattr(self, name) == type(self).model_fields[name].default}
        return self.model_dump(mode="json", exclude=unset)
