"""Memory that is freed is used again in a process that Dask started."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# What a minibatch of 1,024 rows and 32 features takes, a hundred times, in a thread as a learner's.
PROGRAM = """
import resource, sys, threading
import torch
from penstock.tasks.roles.worker.entrypoint import keep_freed_memory

def pages_touched():
    for count in (10, 100):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(count):
            torch.ones(1024, 32)
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

torch.set_num_threads(1)
if sys.argv[1] == "keep":
    keep_freed_memory()
thread = threading.Thread(target=pages_touched)
thread.start()
thread.join()
"""


def pages_touched(how: str) -> int:
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_tensors_take_the_memory_of_those_before():
    """In Dask's environment each is mapped anew, 32 pages a time; afterwards, none is."""
    assert pages_touched("leave") > 1000
    assert pages_touched("keep") < 100
