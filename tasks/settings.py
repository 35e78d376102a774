"""What all tables of settings have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


def at(position: int) -> dict[str, Any]:
    """Pin a field's place in Prefect's form, which otherwise sorts alphabetically."""
    return {"position": position}


class Settings(BaseModel):
    """One table: frozen, without fields that nobody knows, and with finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
