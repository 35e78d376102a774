"""Settings of a custom algorithm, `module:Class`: the fields of its class are its settings."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, Discriminator, Field

from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings

CUSTOM = "custom"


class CustomAlgorithmSettings(AlgorithmSettings):
    """A custom algorithm; its settings are the fields of its class, and `tasks.model.algorithms.custom` checks them.

    They are unknown here, because this module must not import torch, and the class's module does.
    """

    model_config = ConfigDict(extra="allow")
    several_agents: ClassVar[bool | None] = None

    name: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="A custom algorithm as module:Class; its settings are the fields of its class.",
    )


def by_name(default: str) -> Discriminator:
    """Return a discriminator that chooses the settings class by `name`; without a name, the default's class."""

    def choose(value: Any) -> str:
        name = value.get("name", default) if isinstance(value, dict) else getattr(value, "name", default)
        return CUSTOM if ":" in str(name) else str(name)

    return Discriminator(choose)
