"""The base class of all tables of settings."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict


def _keep_order(schema: dict[str, Any]) -> None:
    """Number the fields in the order of their declaration; Prefect's form sorts by name where there is no position."""
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position


def _title(model: type[Any]) -> str:
    """Return the heading of a table in Prefect's form: `Behaviour cloning` for BehaviourCloningSettings."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"(?<=.)(Settings|Config)$", "", model.__name__)).split()
    return " ".join([words[0], *(word if word.isupper() else word.lower() for word in words[1:])])


class Settings(BaseModel):
    """One table of settings: frozen, with finite numbers, refusing unknown fields; forms keep the declared order."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, model_title_generator=_title, json_schema_extra=_keep_order
    )
