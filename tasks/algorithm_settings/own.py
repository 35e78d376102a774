"""Settings of an algorithm from outside the repository: `module:Class`, whose fields say which settings there are."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, Discriminator, Field

from tasks.algorithm_settings.base import AlgorithmSettings
from tasks.settings import at

OWN = "own"


class OwnSettings(AlgorithmSettings):
    """An algorithm of one's own. Its settings are the fields of its class, and are checked by `tasks.own_algorithm`.

    They are not known here, because this must import no torch, and the class's module does.
    """

    model_config = ConfigDict(extra="allow")
    several_agents: ClassVar[bool | None] = None

    name: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="An algorithm of your own as module:Class; its settings are its fields.",
        json_schema_extra=at(0),
    )


def by_name(default: str) -> Discriminator:
    """Tells which settings are meant by their `name`; without one, the default's."""

    def choose(value: Any) -> str:
        name = value.get("name", default) if isinstance(value, dict) else getattr(value, "name", default)
        return OWN if ":" in str(name) else str(name)

    return Discriminator(choose)
