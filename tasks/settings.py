"""What all tables of settings have in common."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict


def at(position: int) -> dict[str, Any]:
    """Pin a field's place in Prefect's form, which otherwise sorts alphabetically."""
    return {"position": position}


def _title(model: type[Any]) -> str:
    """`Behaviour cloning` of BehaviourCloningSettings: the heading of a table in Prefect's form."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"(?<=.)(Settings|Config)$", "", model.__name__)).split()
    return " ".join([words[0], *(word if word.isupper() else word.lower() for word in words[1:])])


class Settings(BaseModel):
    """One table: frozen, without fields that nobody knows, and with finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, model_title_generator=_title)
