"""The message by which the flow assigns a part of a stage to a member of a gang: small, plain data sent as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC_PREFIX = "penstock/"
"""Each topic begins with it."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member's part in one attempt at one stage."""

    store: str
    run: str
    stage: int
    attempt: int
    gang: str
    """Distinguishes gangs of one attempt: one that was given up may still be leaving when the next one starts."""
    generation: int
    """Generation of the lease under which the member works; it must leave when the lease has another one."""
    role: str
    replica: int
    replicas: int
    task_run: str
    """Prefect task run under which the member logs."""
    cache_folder: str
    """Folder of the node's cache; empty: that of the worker's user."""
    device: str
    description: str = ""
    """Digest of the run's `run.json`, which tells it from an earlier run of that name; empty: not checked."""
    before: dict[str, Any] | None = field(default=None, hash=False)
    """Reference to the commit that the stage resumes from; None for the first stage."""
    gang_seconds: float = 60.0
    """Time-out for another member that synchronises with this one within a round."""
    cache_limit_bytes: int = 4 << 30
    read_budget_bytes: int | None = None
    window_budget_bytes: int = 1 << 30
    upload_threads: int = 8
    upload_budget_bytes: int = 256 << 20
    custom_files: dict[str, str] = field(default_factory=dict, hash=False)
    """Digests of a custom algorithm's source files as the driver has them; a worker's must be the same."""

    @property
    def topic(self) -> str:
        """Return the topic under which the members of this attempt, and the flow, exchange notifications."""
        return f"{TOPIC_PREFIX}{self.run}/{self.stage}.{self.attempt}/{self.gang}"

    @property
    def member(self) -> str:
        """Return a member's name within its gang, such as `act-3`."""
        return f"{self.role}-{self.replica}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Assignment:
        """Decode what `to_json` returned."""
        return cls(**values)
