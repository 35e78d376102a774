"""Shares out the GPUs of each host to the members on it, and chooses the library that adds up their gradients.

Every member computes both from the same facts, which all members advertise before the start. NO GPU was available: the
rules are tested, what torch does with them is not (docs/gpu.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GPUS = "gpus"
"""The name under which a member advertises a `VisibleGpus`, as JSON; members that use no GPU advertise nothing."""

Backend: TypeAlias = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """The GPUs that a member's process sees, in the order in which torch numbers them."""

    host: str
    """Name of the host."""
    ids: tuple[str, ...]
    """Their unique identifiers, which do not depend on `CUDA_VISIBLE_DEVICES`; their order does."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> VisibleGpus:
        """Decode what `to_json` returned."""
        return cls(values["host"], tuple(values["ids"]))


def device_indices(advertised: Mapping[str, Any]) -> dict[str, int]:
    """Return torch's index of the GPU that each member computes on.

    In the order of their names, members take the first GPU that they see and that fewest others on their host have
    taken: each its own if there are enough, and otherwise they share evenly. Members with one GPU each, by
    `CUDA_VISIBLE_DEVICES`, keep it.

    Args:
        advertised: by member, what it advertised as `GPUS`; each sees one at least.
    """
    users: dict[tuple[str, str], int] = {}
    indices: dict[str, int] = {}
    for member in sorted(advertised, key=_in_order):
        seen = VisibleGpus.from_json(advertised[member])
        index = min(range(len(seen.ids)), key=lambda number: (users.get((seen.host, seen.ids[number]), 0), number))
        indices[member] = index
        gpu = seen.host, seen.ids[index]
        users[gpu] = users.get(gpu, 0) + 1
    return indices


def backend_of(names: Iterable[str], advertised: Mapping[str, Any]) -> Backend:
    """Return the library for a group: NCCL if each member has a GPU of its own, otherwise gloo.

    Args:
        names: of the group's members.
        advertised: as `device_indices`, of all members of the gang.
    """
    indices = device_indices(advertised)
    gpus = []
    for name in names:
        if name not in indices:
            return "gloo"
        seen = VisibleGpus.from_json(advertised[name])
        gpus.append((seen.host, seen.ids[indices[name]]))
    return "nccl" if len(set(gpus)) == len(gpus) else "gloo"


def _in_order(member: str) -> tuple[str, int]:
    """Return a key that sorts `worker-10` after `worker-9`."""
    role, _, number = member.rpartition("-")
    return role, int(number)
