"""Hands parameters to the actor of the learner's process, which then need not wait for the stored snapshot.

Each learner has the parameters that the publishing one stores. A handed version equals what decoding the snapshot
gives, rounded as it is. Before anything that was acted with it is stored, `SnapshotReader.confirm` compares it with the
stored one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.tensors import load_tensors
from penstock.tasks.data.snapshots.quantize import decode_params, encode_params

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    import torch
    from numpy.typing import NDArray

    from penstock.tasks.data.snapshots.quantize import SnapshotDtype
    from penstock.tasks.specs import Params

_SEPARATOR = "/"


def encode_version(params: Params, groups: Iterable[str], dtype: SnapshotDtype, version: int) -> bytes:
    """Return the snapshot of a version: the actors' groups of the parameters, as a safetensors file."""
    tensors = {
        f"{group}{_SEPARATOR}{name}": value.detach().cpu() for group in groups for name, value in params[group].items()
    }
    return encode_params(tensors, dtype, {"version": version})


def decode_version(arrays: Mapping[str, NDArray[Any]]) -> Params:
    """Return parameters by group and name, ready to act with, from a snapshot's arrays.

    Raises:
        ValueError: as `decode_params`.
    """
    params: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in decode_params(arrays).items():
        group, _, rest = name.partition(_SEPARATOR)
        params.setdefault(group, {})[rest] = value
    return params


@dataclass(frozen=True, slots=True)
class HandedVersion:
    """A version in memory, before or after its snapshot is stored."""

    params: Params
    digest: Callable[[], str]
    """Returns the digest of the snapshot that has these parameters; encodes it if need be."""


class HandedVersions:
    """Holds the versions that a learner has handed over and the actor has not taken. Thread-safe.

    Args:
        groups: of parameters, that actors use.
        dtype: in which snapshots store weights.
        device: of the actor.
        lag: of the run. At most lag + 1 versions are held: older ones are acted with no more.
        wake: makes a waiting actor look again.
    """

    def __init__(
        self,
        groups: Iterable[str],
        dtype: SnapshotDtype,
        device: torch.device,
        lag: int,
        wake: Callable[[], None],
    ) -> None:
        self._groups = tuple(groups)
        self._dtype = dtype
        self._device = device
        self._lag = lag
        self._wake = wake
        self._lock = threading.Lock()
        self._held: dict[int, HandedVersion] = {}

    def put(self, version: int, params: Params) -> None:
        """Hand a copy of a version over: the learner's parameters change in place."""
        handed = self._copied(version, params)
        with self._lock:
            self._held[version] = handed
            for older in [held for held in self._held if held < version - self._lag]:
                del self._held[older]
        self._wake()

    def holds(self, version: int) -> bool:
        """Return whether a version can be taken."""
        with self._lock:
            return version in self._held

    def take(self, version: int) -> HandedVersion | None:
        """Return a version, which is then no longer held; None if it is not there."""
        with self._lock:
            return self._held.pop(version, None)

    def _copied(self, version: int, params: Params) -> HandedVersion:
        if self._dtype == "float32":
            copies = {
                group: {name: value.detach().to(self._device, copy=True) for name, value in params[group].items()}
                for group in self._groups
            }
            return HandedVersion(copies, lambda: digest(encode_version(copies, self._groups, self._dtype, version)))
        # On the host, as the publisher does: a GPU may round otherwise.
        data = encode_version(params, self._groups, self._dtype, version)
        content = digest(data)
        arrays, _ = load_tensors(memoryview(bytearray(data)), f"version {version}")
        return HandedVersion(decode_version(arrays), lambda: content)
