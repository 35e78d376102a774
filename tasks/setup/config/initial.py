"""Settings of the parameters that a new run starts with, where they are those of another run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from penstock.tasks.settings import Settings


class InitialSettings(Settings):
    """The stored run whose parameters a new run starts with; without one, they are drawn from the seed."""

    run: str | None = Field(
        None,
        description="Run whose parameters a new run starts with: a name in the store, or the path or s3:// address of "
        "its folder; empty: random ones.",
    )
    version: int | Literal["newest", "best"] = Field(
        "newest",
        description="Version of its parameters, the last of a stage; the start turns newest and best into a number.",
    )
    groups: tuple[str, ...] = Field(
        (), description="Parameter groups that are taken, such as policy; the others are random. Empty: all groups."
    )
    digest: str | None = Field(
        None,
        description="Digest of the parameters, stored when a run begins; others are refused.",
    )

    @model_validator(mode="after")
    def _needs_run(self) -> InitialSettings:
        given = self.version != "newest" or self.groups or self.digest is not None
        if self.run is None and given:
            raise ValueError("version, groups or digest without a run, expected init_from.run as well; name the run")
        if len(set(self.groups)) < len(self.groups):
            raise ValueError(f"groups = {list(self.groups)} names a group twice")
        return self
