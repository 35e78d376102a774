"""Flows that sleep through the loss of their lease, and clocks that jump: a second drives, and one history stays."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock.storage.runs
from penstock.storage.errors import CommitConflictError, LeaseHeldError, LeaseLostError
from penstock.storage.runs.commit_copies import list_copies
from penstock.storage.runs.commit_schema import encode_commit
from penstock.storage.runs.commits import CommitLog, commit_name, commit_ref
from penstock.storage.runs.lease import LEASE, Lease, LeaseKeeper, acquire
from penstock.storage.stores.open import open_store

from .test_commits import GENESIS
from .test_lease import Clock
from .test_two_writers import append, check, one_of_two

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage.stores.protocol import Store

DAY = 86_400.0
FLOW = """
import os, signal, sys
from penstock.storage.runs.commit_schema import decode_commit
from penstock.storage.runs.commits import CommitLog
from penstock.storage.runs.lease import acquire
from penstock.storage.stores.local import LocalStore
from penstock.storage.stores.open import open_store

url, ttl, stops, is_fenced = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4] == "True"
create = LocalStore.create

def stop_and_create(store, name, data):
    if name.startswith("commits/"):
        if stops == "before the creation":
            os.kill(os.getpid(), signal.SIGSTOP)
        if not is_fenced:
            return store.write(name, [data])  # as a store that ignores the condition
    create(store, name, data)

LocalStore.create = stop_and_create
store = open_store(url)
commit = decode_commit(sys.stdin.buffer.read(), "commit", 0)
with acquire(store, "the first flow", ttl) as keeper:
    if stops == "before the check":
        with keeper._mutex:  # a renewal that was under way would end after another flow has taken over
            os.kill(os.getpid(), signal.SIGSTOP)
    try:
        keeper.check()
        CommitLog(store, is_fenced=is_fenced).append(commit)
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "run")


@pytest.fixture
def stopped_flow(store: Store) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process that drives the run of `store` and stops itself; it is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(ttl_seconds: float, stops: str, *, is_fenced: bool) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", FLOW, store.url, str(ttl_seconds), stops, str(is_fenced)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        assert process.stdin is not None
        process.stdin.write(encode_commit(one_of_two("a")))
        process.stdin.close()
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def take_over(store: Store) -> LeaseKeeper:
    """Take a run over as from another host, which knows nothing of the driver's process; its ttl passes in no time."""
    found = Lease.decode(store.read(LEASE))
    store.write(LEASE, [replace(found, machine="another boot").encode()])
    clock = Clock()
    keeper = acquire(store, "the second flow", 600.0, sleep=clock.sleep, clock=clock)
    assert keeper.generation == found.generation + 1
    return keeper


@pytest.mark.parametrize(
    ("ttl_seconds", "stops", "is_fenced", "said"),
    [
        (0.2, "before the check", True, "LeaseLostError"),
        # Its clock stood still, as while a machine sleeps: it does not know that its lease is overdue.
        (600.0, "before the check", True, "CommitConflictError"),
        (600.0, "before the check", False, "CommitConflictError"),
        (600.0, "before the creation", True, "CommitConflictError"),
        (600.0, "before the creation", False, "CommitConflictError"),
    ],
)
def test_a_flow_that_wakes_after_its_lease_is_gone_is_refused(store, stopped_flow, ttl_seconds, stops, is_fenced, said):
    """Another flow has committed the stage meanwhile. What the first one writes replaces nothing, or is a conflict."""
    process, stopped_at = stopped_flow(ttl_seconds, stops, is_fenced=is_fenced), time.monotonic()
    with take_over(store) as keeper:
        commits = {flow: one_of_two(flow) for flow in "ab"}
        keeper.check()
        errors = {"b": append(CommitLog(store, is_fenced=is_fenced), commits["b"])}
        while said == "LeaseLostError" and time.monotonic() < stopped_at + ttl_seconds:
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.read().decode().split() == [said]
        keeper.check()
        assert Lease.decode(store.read(LEASE)).owner == "the second flow"
    was_too_late = stops == "before the creation" and not is_fenced
    if was_too_late:
        assert store.read(commit_name(0)) == encode_commit(commits["a"])
        with pytest.raises(CommitConflictError):
            CommitLog(store).newest()
        digests = sorted(commit_ref(commit).digest for commit in commits.values())
        assert sorted(list_copies(store)[0]) == digests
    else:
        assert check(store, commits, errors, is_fenced=is_fenced) == "b"


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(store: Store) -> tuple[LeaseKeeper, Clock]:
    """Return a flow that drives from elsewhere and renews only when it is told to, and its clock."""
    clock = Clock()
    lease = replace(Lease.of_this_process("the first flow", 9.0), machine="another boot")
    store.write(LEASE, [lease.encode()])
    return LeaseKeeper(store, lease, clock=clock), clock


@pytest.mark.parametrize("jump", [DAY, -DAY, 1e9, -1e9])
def test_a_driver_whose_clock_jumps_keeps_its_run(store, driver, jump):
    """It renews and continues, since nobody took over; its clock is compared with no other."""
    keeper, clock = driver
    clock.now += jump
    keeper.check()
    keeper.renew()
    keeper.check()
    clock.now -= jump
    keeper.check()
    assert Lease.decode(store.read(LEASE)).sequence >= 1


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_second_flow_whose_clock_jumps_leaves_a_living_driver_alone(store, driver, jump):
    """The driver renewed meanwhile, and that is what counts."""
    keeper, _ = driver

    def jump_and_renew() -> None:
        clock.now += jump
        keeper.renew()

    clock = Clock(during=jump_and_renew)
    with pytest.raises(LeaseHeldError, match="the first flow"):
        acquire(store, "the second flow", 9.0, sleep=clock.sleep, clock=clock)
    keeper.check()


def test_a_clock_that_goes_back_delays_a_take_over_and_no_more(store, driver):
    """It ends once the clock has shown a whole ttl without a renewal."""
    jumps = iter([-DAY])

    def jump_once() -> None:
        clock.now += next(jumps, DAY / 2)

    clock = Clock(during=jump_once)
    with acquire(store, "the second flow", 9.0, sleep=clock.sleep, clock=clock) as keeper:
        assert keeper.generation == 2
    driver[0].renew()
    with pytest.raises(LeaseLostError, match="the second flow"):
        driver[0].check()


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_take_over_from_a_living_driver_forks_nothing(store, driver, first):
    """The second flow's clock jumped over the ttl before the driver renewed: both drive for a moment, and commit."""
    clock = Clock()
    clock.sleep = lambda _: setattr(clock, "now", clock.now + DAY)
    with acquire(store, "the second flow", 9.0, sleep=clock.sleep, clock=clock):
        commits = {flow: one_of_two(flow) for flow in "ab"}
        driver[0].check()  # by its own clock there is still time
        errors: dict[str, Any] = {}
        for flow in sorted("ab", key=lambda flow: flow != first):
            errors[flow] = append(CommitLog(store), commits[flow])
        assert check(store, commits, errors, is_fenced=True) == first
        driver[0].renew()
        with pytest.raises(LeaseLostError):
            driver[0].check()


def test_no_decision_depends_on_the_wall_clock():
    """Modules that decide who drives, and which commit is the newest, know monotonic time alone."""
    folder = Path(penstock.storage.runs.__path__[0])
    for module in ("lease", "lease_state", "commits", "commit_copies", "commit_schema", "latest", "rollups/names"):
        tree = ast.parse((folder / f"{module}.py").read_text(encoding="utf-8"))
        named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert {name for name in named if name.startswith("time.")} <= {"time.monotonic", "time.sleep"}, module
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)])
        }
        assert not imported & {"datetime", "calendar", "email"}, module
        assert "from time import" not in ast.unparse(tree), module


def test_a_wall_clock_that_jumps_changes_nothing(store, driver, monkeypatch):
    """A take-over and commits while the time of day runs wild."""
    times = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(times) * 1e10)
    monkeypatch.setattr(time, "time_ns", lambda: (-1) ** next(times) * 10**19)
    clock = Clock()
    with acquire(store, "the second flow", 9.0, sleep=clock.sleep, clock=clock) as keeper:
        keeper.check()
        log = CommitLog(store, is_fenced=False)
        log.append(one_of_two("b"))
        assert 9.0 < clock.now - 1000.0 < 18.0
        assert log.newest() == one_of_two("b")
        assert log.verify(GENESIS) == 1
