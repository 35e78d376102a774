"""Leases of other processes, real and made up, and a clock that passes only while somebody sleeps."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

from penstock.storage.runs.lease import LEASE, Lease

TTL = 9.0

OWNER_PROGRAM = """
import sys, time
from penstock.storage.runs.lease import acquire
from penstock.storage.stores.local import LocalStore
from penstock.storage.stores.open import open_store
keeper = acquire(open_store(sys.argv[1]), "the other flow", float(sys.argv[2]))
print(keeper.generation, flush=True)
sys.stdin.read()
keeper.release()
"""


class Clock:
    """Monotonic seconds that pass only in `sleep`; `during` is called at each sleep."""

    def __init__(self, during=None):
        self.now = 1000.0
        self.calls = 0
        self.sleeps = []
        self.during = during

    def __call__(self):
        self.calls += 1
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds
        if self.during:
            self.during()


@contextmanager
def owner_processes(store):
    """Yield a function that starts a process which drives the run of `store`; killed at the end."""
    started = []

    def start(ttl_seconds):
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER_PROGRAM, store.url, str(ttl_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        assert int(process.stdout.readline()) >= 1
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def make_lease(**changes):
    """A lease of a process somewhere else, of which nothing is known."""
    somewhere = replace(Lease.of_this_process("somebody", TTL), host="elsewhere", machine="another boot/pid:[1]", pid=7)
    return replace(somewhere, **changes)


def put(store, lease):
    store.write(LEASE, [lease.encode()])


def get(store):
    return Lease.decode(store.read(LEASE))


def eventually(condition):
    deadline = time.monotonic() + 150
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
