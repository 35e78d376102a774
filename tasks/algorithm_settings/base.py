"""What every algorithm's settings have."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tasks.settings import Settings

Widths = tuple[Annotated[int, Field(ge=1)], ...]
"""Widths of hidden layers."""


class AlgorithmSettings(Settings):
    """What every algorithm's settings have."""

    row_columns: ClassVar[tuple[str, ...]] = ("action",)
    """Names of the columns that the algorithm adds to a shard."""

    several_agents: ClassVar[bool | None] = False
    """Whether the algorithm learns from an environment of several agents with a reward each, or from one reward; None
    if it knows itself, by `EnvironmentSpec.agents`."""

    name: str
