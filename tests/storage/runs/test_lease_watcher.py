"""A member's watch over the lease: it works for one generation of a run's driver, and notices its end."""

import threading

import pytest

from penstock.storage.runs.lease import LEASE, LeaseWatcher, acquire
from penstock.storage.stores.open import open_store

from ...support.stored.leases import TTL, Clock, eventually, get, make_lease, owner_processes, put

OWNER_TTL = 0.15


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))


@pytest.fixture
def owner(store):
    with owner_processes(store) as start:
        yield start


def test_a_watcher_sees_renewals_take_over_and_end(store):
    """The owner is alive while its lease changes; it is lost for good once another generation is stored."""
    clock = Clock()
    watcher = LeaseWatcher(store, 1, clock=clock)
    for sequence in range(4):
        put(store, make_lease(sequence=sequence))
        watcher.poll()
        assert not watcher.lost
        clock.now += TTL
    put(store, make_lease(generation=2, owner="the next"))
    watcher.poll()
    assert watcher.lost
    assert "the next" in watcher.reason
    put(store, make_lease(sequence=9))
    watcher.poll()
    assert watcher.lost


@pytest.mark.parametrize("damage", ["gone", "malformed", "unreadable", "unchanged"])
def test_a_watcher_leaves_when_it_sees_no_renewal_for_a_ttl(store, tmp_path, damage):
    """For any cause: not before the ttl has passed, and then certainly."""
    clock = Clock()
    put(store, make_lease())
    watcher = LeaseWatcher(store, 1, clock=clock)
    watcher.poll()
    if damage == "malformed":
        store.write(LEASE, [b"{"])
    elif damage != "unchanged":
        store.delete([LEASE])
        if damage == "unreadable":
            (tmp_path / LEASE).symlink_to(LEASE)
    clock.now += TTL
    watcher.poll()
    assert not watcher.lost
    clock.now += 0.1
    watcher.poll()
    assert watcher.lost
    assert watcher.reason


def test_a_watcher_of_a_past_generation_knows_from_the_start(store):
    """Its tasks were submitted by a flow that is no more: start() has polled when it returns."""
    put(store, make_lease(generation=2))
    watcher = LeaseWatcher(store, 1)
    watcher.start()
    assert watcher.lost
    watcher.stop()


def test_a_watchers_thread_follows_a_real_owner_to_its_death(store, owner):
    """Two processes: alive while the owner renews, lost after it was killed, and its lease is taken over.

    The watcher's clock passes almost a ttl after each renewal that it has seen, however long that takes.
    """
    process, clock = owner(OWNER_TTL), Clock()
    watcher = LeaseWatcher(store, get(store).generation, clock=clock)
    watcher.start()
    for _ in range(3):
        sequence = get(store).sequence
        eventually(lambda sequence=sequence: get(store).sequence > sequence)
        calls = clock.calls
        eventually(lambda calls=calls: watcher.lost or clock.calls >= calls + 2)
        assert not watcher.lost
        clock.now += 0.9 * OWNER_TTL
    process.kill()
    process.wait()
    eventually(lambda: clock.sleep(OWNER_TTL) or watcher.lost)
    assert "unchanged" in watcher.reason
    watcher.stop()
    with acquire(store, "me", TTL) as keeper:
        assert keeper.generation == 2


def test_a_watcher_can_be_stopped_while_the_lease_is_fine(store):
    """stop() ends the thread without waiting for the next poll."""
    put(store, make_lease(ttl_seconds=3600.0))
    watcher = LeaseWatcher(store, 1)
    watcher.start()
    threads = [thread for thread in threading.enumerate() if thread.name == "lease-watcher"]
    watcher.stop()
    assert threads
    assert not any(thread.is_alive() for thread in threads)
    assert not watcher.lost
