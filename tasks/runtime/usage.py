"""Measures the resources of a member's process, twice a stage: at its begin and its end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.storage.runs.timings import ProcessUsage
from penstock.storage.stores.counted import calls_since

if TYPE_CHECKING:
    from penstock.storage.stores.counted import StoreTally

_STATM = Path("/proc/self/statm")


class UsageMeter:
    """Measures from its construction until `usage` is called.

    Args:
        member: the name of the member.
        tally: counts the store calls of its process.
    """

    def __init__(self, member: str, tally: StoreTally) -> None:
        self._member, self._tally = member, tally
        self._counts = tally.counts()
        self._started, self._cpu_seconds = time.perf_counter(), time.process_time()
        if (cuda := _cuda()) is not None:
            cuda.reset_peak_memory_stats()

    def usage(self) -> ProcessUsage:
        """Return what the process has used."""
        cuda = _cuda()
        return ProcessUsage(
            members=(self._member,),
            seconds=time.perf_counter() - self._started,
            cpu_seconds=time.process_time() - self._cpu_seconds,
            memory_bytes=resident_bytes(),
            gpu_memory_bytes=None if cuda is None else int(cuda.max_memory_allocated()),
            store=calls_since(self._counts, self._tally.counts()),
        )


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not say."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _cuda() -> Any:
    """Return torch's module for CUDA if this process uses it, else None; it never starts CUDA."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
