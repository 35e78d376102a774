"""How the C library deals with memory that torch frees, in processes that compute.

Dask starts its workers with a low `MALLOC_TRIM_THRESHOLD_`, so that data frames that are dropped go back to the system.
glibc then also stops adapting to what a program allocates: every tensor of 128 KiB or more is mapped, zeroed page by
page and unmapped again, a minibatch's many times an update. That took a learner a third of its time.
"""

from __future__ import annotations

import ctypes

# Parameters of `mallopt`, from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD_BYTES = 32 << 20
_KEPT_BYTES = 64 << 20


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to 64 MiB a heap, whatever its environment says.

    Does nothing where the allocator is not glibc's: others keep what they need.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    set_option(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES)
    set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
