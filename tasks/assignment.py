"""What the flow tells a member of a gang: which part of which stage it is. Small, plain data that travels as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member's part in one attempt at one stage."""

    store: str
    run: str
    stage: int
    attempt: int
    gang: str
    """Tells gangs of one attempt apart: one that was told to leave may still be leaving when the next one starts."""
    generation: int
    """Of the lease under which the member works; another generation means that it has to leave."""
    role: str
    replica: int
    replicas: int
    task_run: str
    """Prefect task run under which the member logs."""
    cache_folder: str
    device: str
    before: dict[str, Any] | None = field(default=None, hash=False)
    """Reference to the commit that the stage goes on from; None for the first stage."""
    gang_seconds: float = 60.0
    """How long a member waits for another one that it works in step with."""
    cache_limit_bytes: int = 4 << 30
    read_budget_bytes: int | None = None
    window_budget_bytes: int = 1 << 30
    upload_threads: int = 8
    upload_budget_bytes: int = 256 << 20
    own_files: dict[str, str] = field(default_factory=dict, hash=False)
    """Of one's own algorithm, digests of its source files as who drives the run has them; a worker has to agree."""

    @property
    def topic(self) -> str:
        """Name under which the members of this attempt, and the flow, exchange hints."""
        return f"penstock/{self.run}/{self.stage}.{self.attempt}/{self.gang}"

    @property
    def member(self) -> str:
        """`act-3`, `learn-0`: a member's name within its gang."""
        return f"{self.role}-{self.replica}"

    def to_json(self) -> dict[str, Any]:
        """For the way to a worker."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Assignment:
        """Back from `to_json`."""
        return cls(**values)
