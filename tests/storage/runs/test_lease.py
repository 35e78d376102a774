"""The lease: a run has one driver at a time; a dead driver's lease is taken over, and its tasks notice."""

import os
import signal
import threading
from dataclasses import replace

import pytest

from penstock.storage import system
from penstock.storage.errors import CorruptObjectError, LeaseHeldError, LeaseLostError, StoreError
from penstock.storage.runs.lease import LEASE, Lease, LeaseKeeper, LeaseView, acquire, begin, driver, refuse_driven
from penstock.storage.stores.local import LocalStore
from penstock.storage.stores.open import open_store

from ...support.stored.leases import TTL, Clock, eventually, get, make_lease, owner_processes, put


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))


@pytest.fixture
def owner(store):
    with owner_processes(store) as start:
        yield start


# --- what is seen -----------------------------------------------------------------------------------------------------


def test_a_lease_comes_back_as_it_was_written():
    """Owner, generation, sequence, ttl and the owner's process survive storage."""
    lease = make_lease(generation=3, sequence=12, released=True)
    assert Lease.decode(lease.encode()) == lease


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"format":"penstock-lease/1"}',
        make_lease().encode().replace(b"lease/1", b"lease/2"),
        make_lease(generation="3").encode(),
        make_lease(ttl_seconds=0.0).encode(),
        make_lease(ttl_seconds=1e300).encode(),
        make_lease().encode().replace(b'"ttl_seconds":', b'"ttl_seconds":1e999,"x":'),
        make_lease(pid=-1).encode(),
        b"[" * 100_000,
    ],
)
def test_a_malformed_lease_is_watched_and_taken_over(store, data, caplog):
    """As a power cut leaves it: nobody renews it for 30 s, and its generation follows that of the timings.

    Nothing asks a person to remove the file.
    """
    with pytest.raises(CorruptObjectError, match=rf"'{LEASE}' is not a lease: .* need not be removed: .* for 30 s"):
        Lease.decode(data)
    store.write(LEASE, [data])
    store.write("timings/00000003-00000004.json", [b"{}"])
    store.write("timings/notes.txt", [b"foreign"])
    clock = Clock()
    with acquire(store, "me", TTL, sleep=clock.sleep, clock=clock) as keeper:
        assert 30.0 < clock.now - 1000.0 <= 41.0
        assert keeper.generation == 6
        assert get(store).owner == "me"
    (said,) = caplog.messages
    assert "This command has begun to watch it" in said


def test_a_malformed_lease_that_is_renewed_is_held(store):
    """A living owner writes the next renewal over it, and keeps the run."""
    store.write(LEASE, [b""])
    renewals = iter(range(1, 100))
    clock = Clock(during=lambda: put(store, make_lease(sequence=next(renewals))))
    with pytest.raises(LeaseHeldError):
        acquire(store, "me", TTL, sleep=clock.sleep, clock=clock)


def test_a_hidden_process_is_not_taken_for_dead(monkeypatch):
    """`/proc` mounted with hidepid shows no process of another user, but signals tell that there is one."""
    lease = Lease.of_this_process("another user", TTL)
    monkeypatch.setattr("penstock.storage.system.process_start", lambda _: None)

    def kill(_: int, signal: int) -> None:
        assert signal == 0
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert lease.owner_process() == "unknown"


def test_renewals_keep_a_generation_alive_for_its_observer():
    """Time is measured from the last change that this observer saw."""
    view = LeaseView(make_lease(), 0.0)
    for sequence in range(1, 5):
        assert view.observe(make_lease(sequence=sequence), sequence * TTL)
        assert view.lost(1) == ""
    assert view.unchanged_seconds == 0


def test_a_generation_is_lost_after_one_unchanged_ttl():
    """Not at the ttl, but after it; and the reason names the owner."""
    lease = make_lease()
    view = LeaseView(lease, 100.0)
    assert not view.observe(lease, 100.0 + TTL)
    assert view.lost(1) == ""
    view.observe(lease, 100.1 + TTL)
    assert "somebody" in view.lost(1)


@pytest.mark.parametrize("first", [None, make_lease()])
def test_a_lease_that_vanished_is_lost_after_a_ttl(first):
    """A missing lease and failed polls count as unchanged: nothing is lost at once, and all after the ttl."""
    view = LeaseView(first, 0.0)
    view.observe(None, view.ttl_seconds)
    assert view.lost(1) == ""
    view.observe(None, view.ttl_seconds + 0.1)
    assert view.lost(1) != ""


def test_time_without_polls_does_not_count_against_the_owner():
    """A process that was stopped for long finds the lease renewed, and continues."""
    view = LeaseView(make_lease(), 0.0)
    view.observe(make_lease(sequence=100), 50 * TTL)
    assert view.lost(1) == ""


def test_a_take_over_and_a_release_are_seen_at_once():
    """Both end the generation without any wait; a lower generation, a zombie's late write, does not."""
    view = LeaseView(make_lease(generation=4), 0.0)
    view.observe(make_lease(generation=3, sequence=9), 1.0)
    assert view.lost(4) == ""
    view.observe(make_lease(generation=4, released=True), 2.0)
    assert "released" in view.lost(4)
    view.observe(make_lease(generation=5, owner="the next"), 3.0)
    assert "the next" in view.lost(4)
    assert view.lost(5) == ""


# --- acquisition ------------------------------------------------------------------------------------------------------


def test_a_free_run_is_taken_at_once_and_given_back(store):
    """Generations count up, and a released lease is taken over without waiting for it to run out."""
    for generation in (1, 2, 3):
        clock = Clock()
        with acquire(store, "me", TTL, sleep=clock.sleep, clock=clock) as keeper:
            assert keeper.generation == get(store).generation == generation
            keeper.check()
        assert sum(clock.sleeps) < 1
        assert get(store).released
        keeper.release()


def test_the_same_process_is_refused_a_run_that_it_drives(store):
    """Two flows in one process are two flows; the message names owner, host and pid."""
    with acquire(store, "the first flow", TTL) as keeper:
        with pytest.raises(LeaseHeldError) as caught:
            acquire(store, "the second flow", TTL, sleep=pytest.fail)
        for fact in ("the first flow", get(store).host, str(os.getpid()), "resume"):
            assert fact in str(caught.value)
        keeper.check()
        assert get(store).generation == 1


def test_a_lease_below_a_name_of_its_own_is_held_until_it_is_given_back(store):
    """Another that finds it, as garbage collection finds a reader's, is refused while its owner lives."""
    keeper = begin(store, "a reader", TTL)
    with pytest.raises(LeaseHeldError, match="a reader"):
        acquire(store, "garbage collection", TTL, sleep=pytest.fail)
    keeper.renew()
    keeper.check()
    assert (get(store).generation, get(store).sequence) == (1, 1)
    keeper.release()
    with acquire(store, "garbage collection", TTL) as next_keeper:
        assert next_keeper.generation == 2


class SendsAgain(LocalStore):
    """A folder behind a network that has lost an answer, and a client that sends its request again."""

    def create(self, name, data):
        super().create(name, data)
        super().create(name, data)


class LosesAnswers(LocalStore):
    """A folder behind a network that loses answers until the client gives up."""

    def create(self, name, data):
        super().create(name, data)
        raise StoreError("no answer")


def test_a_creation_whose_answer_was_lost_is_the_owners(tmp_path):
    """The repeated request finds the object, whose token is the owner's."""
    store = SendsAgain(tmp_path)
    with acquire(store, "me", TTL) as keeper:
        keeper.check()
        assert get(store).generation == keeper.generation == 1
    assert get(store).released


def test_a_lease_that_this_process_does_not_know_to_hold_is_taken_over(tmp_path):
    """A store's error came instead of the answer: nobody renews it, and this process would be the last to know."""
    with pytest.raises(StoreError, match="no answer"):
        acquire(LosesAnswers(tmp_path), "me", TTL)
    store = LocalStore(tmp_path)
    assert not get(store).released
    with acquire(store, "me again", TTL, sleep=Clock().sleep) as keeper:
        assert keeper.generation == 2
        with pytest.raises(LeaseHeldError):
            acquire(store, "another one", TTL, sleep=pytest.fail)


def test_an_unknown_owner_is_watched_for_one_ttl(store):
    """A lease that is unchanged for its own ttl, not the observer's, is taken over with the next generation."""
    put(store, make_lease(generation=6, sequence=40))
    clock = Clock()
    with acquire(store, "me", 60.0, sleep=clock.sleep, clock=clock) as keeper:
        assert keeper.generation == 7
        assert TTL < clock.now - 1000.0 < 2 * TTL


def test_an_owner_in_a_container_that_has_this_hosts_name_is_not_to_be_killed_by_its_pid_here(store):
    """Its pid is one of the container's, where the first process has 1."""
    lease = replace(make_lease(), host=system.process().host, machine="a container", pid=1)
    put(store, lease)
    clock = Clock(during=lambda: put(store, replace(lease, sequence=1)))
    with pytest.raises(LeaseHeldError, match="in another container or machine that is called") as caught:
        acquire(store, "me", TTL, sleep=clock.sleep, clock=clock)
    assert "kill" not in str(caught.value)


def test_an_owner_that_renews_while_being_watched_is_left_alone(store):
    """A changed sequence number shows that it lives; its lease is not touched."""
    put(store, make_lease())
    clock = Clock(during=lambda: put(store, make_lease(sequence=1)))
    with pytest.raises(LeaseHeldError, match="elsewhere"):
        acquire(store, "me", TTL, sleep=clock.sleep, clock=clock)
    assert get(store) == make_lease(sequence=1, token=get(store).token)


def test_an_owner_that_releases_or_is_removed_while_being_watched_is_followed(store):
    """Then there is nothing left to wait for."""
    first = make_lease()
    put(store, first)
    clock = Clock(
        during=lambda: first.token in store.read(LEASE).decode() and put(store, replace(first, released=True))
    )
    with acquire(store, "me", TTL, sleep=clock.sleep, clock=clock) as keeper:
        assert keeper.generation == 2
        assert clock.now - 1000.0 < TTL
    put(store, first)
    clock = Clock(during=lambda: first.token in store.read(LEASE).decode() and store.delete([LEASE]))
    with acquire(store, "me", TTL, sleep=clock.sleep, clock=clock) as keeper:
        assert keeper.generation == 1


def test_the_last_of_two_takers_to_write_has_the_lease(store):
    """Both saw the same free lease; the one whose lease was overwritten notices it."""
    put(store, make_lease(released=True))
    other = make_lease(generation=2, owner="the faster one")
    clock = Clock(during=lambda: put(store, other))
    with pytest.raises(LeaseHeldError, match="the faster one"):
        acquire(store, "me", TTL, sleep=clock.sleep, clock=clock)
    assert get(store) == other


def test_threads_that_race_for_a_new_run_have_one_winner(store):
    """Creating the lease is exclusive."""
    keepers, refused = [], []
    barrier = threading.Barrier(4)

    def race():
        barrier.wait()
        try:
            keepers.append(acquire(store, "racer", TTL))
        except LeaseHeldError:
            refused.append(1)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(keepers), len(refused)) == (1, 3)
    keepers[0].release()


def test_another_process_is_refused_at_once_killed_and_taken_over_at_once(store, owner):
    """On one host a live owner is known to live and a killed one to be dead, without waiting for a long ttl."""
    process = owner(600.0)
    with pytest.raises(LeaseHeldError) as caught:
        acquire(store, "me", 600.0)
    assert "the other flow" in str(caught.value)
    assert str(process.pid) in str(caught.value)
    process.send_signal(signal.SIGKILL)
    # Not waited for: a zombie is as dead as a process that was.
    eventually(lambda: get(store).owner_process() == "dead")
    with acquire(store, "me", 600.0) as keeper:
        assert keeper.generation == 2
    process.wait()


def test_a_driven_run_is_refused_before_anything_starts(store, owner):
    """As far as a read says: a living process of this host drives it, and no other is known to."""
    refuse_driven(store)
    other = owner(600.0)
    with pytest.raises(LeaseHeldError, match="the other flow"):
        refuse_driven(store)
    other.send_signal(signal.SIGKILL)
    eventually(lambda: get(store).owner_process() == "dead")
    refuse_driven(store)
    with acquire(store, "me", TTL):
        refuse_driven(store)  # this process's own flow
    put(store, make_lease())
    refuse_driven(store)  # a process of another host, which may be gone


def test_the_driver_of_a_run_is_the_owner_of_a_lease_that_was_not_released(store):
    """A process of another host counts, since it may be alive."""
    assert driver(store) is None
    put(store, make_lease())
    assert driver(store) == get(store)
    put(store, replace(get(store), released=True))
    assert driver(store) is None


def test_another_process_that_releases_can_be_followed(store, owner):
    """A flow that ends well leaves no wait behind."""
    process = owner(600.0)
    process.communicate(b"")
    assert process.returncode == 0
    with acquire(store, "me", 600.0) as keeper:
        assert keeper.generation == 2


def test_a_later_process_with_the_owners_pid_is_not_the_owner(store):
    """The start time distinguishes them: the owner is dead, its lease is free."""
    put(store, replace(Lease.of_this_process("my predecessor", 600.0), process_start="1"))
    with acquire(store, "me", 600.0) as keeper:
        assert keeper.generation == 2


def test_a_lease_that_can_be_neither_read_nor_created_is_an_error(store, tmp_path):
    """A folder of that name, say: no endless loop."""
    (tmp_path / LEASE).mkdir()
    clock = Clock()
    with pytest.raises(StoreError, match=LEASE):
        acquire(store, "me", TTL, sleep=clock.sleep, clock=clock)


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan")])
def test_an_invalid_ttl_is_refused(store, ttl):
    """Nothing is written for it."""
    with pytest.raises(ValueError, match="ttl_seconds"):
        acquire(store, "me", ttl)
    assert store.list() == []


# --- keeping it -------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(store):
    """A keeper that renews only when called, and its clock."""
    clock = Clock()
    lease = replace(Lease.of_this_process("me", TTL), generation=2)
    put(store, lease)
    return LeaseKeeper(store, lease, clock=clock), clock


def test_the_lease_is_renewed_in_the_background(store):
    """A short ttl passes several times, and the lease is still ours."""
    with acquire(store, "me", 0.15) as keeper:
        keeper.start()
        eventually(lambda: get(store).sequence >= 5)
        keeper.check()


def test_a_take_over_is_noticed_and_final(store, kept):
    """The next generation ends ours at the next renewal; nothing of ours is written over it."""
    keeper, _ = kept
    successor = make_lease(generation=3, owner="the successor")
    put(store, successor)
    keeper.renew()
    assert keeper.lost
    with pytest.raises(LeaseLostError, match="the successor"):
        keeper.check()
    keeper.release()
    assert get(store) == successor
    put(store, make_lease(generation=1))
    keeper.renew()
    assert keeper.lost


def test_a_twin_of_the_same_generation_wins_if_it_wrote_last(store, kept):
    """Two takers at the same time, seen late: the stored one stays, the other leaves."""
    keeper, _ = kept
    put(store, make_lease(generation=2, owner="the twin"))
    keeper.renew()
    with pytest.raises(LeaseLostError, match="the twin"):
        keeper.check()


def test_a_late_write_of_a_former_owner_is_replaced(store, kept):
    """An owner that slept through its take-over can't end its successor."""
    keeper, _ = kept
    put(store, make_lease(generation=1, owner="a zombie"))
    keeper.renew()
    keeper.check()
    assert get(store).owner == "me"


def test_a_failing_store_is_forgiven_for_one_ttl(store, kept, caplog, tmp_path):
    """Failures to renew are logged; a ttl after the last renewal others may drive, so the lease is lost."""
    keeper, clock = kept
    clock.now += TTL
    keeper.renew()
    (tmp_path / LEASE).unlink()
    (tmp_path / LEASE).symlink_to(LEASE)  # can be neither read nor followed
    with pytest.raises(StoreError):
        store.read(LEASE)
    clock.now += TTL
    keeper.renew()
    keeper.check()
    clock.now += 0.1
    with pytest.raises(LeaseLostError, match="could not be renewed"):
        keeper.check()
    assert "not renewed" in caplog.text


def test_a_removed_lease_is_not_restored_and_lost_after_a_ttl(store, kept):
    """Removing the file by hand is a way to end a run."""
    keeper, clock = kept
    store.delete([LEASE])
    keeper.renew()
    assert not keeper.lost
    clock.now += TTL + 0.1
    keeper.renew()
    assert keeper.lost
    assert not store.exists(LEASE)


def test_check_renews_an_overdue_lease_that_was_not_taken_over(store, kept):
    """A process that was stopped for long and not replaced continues."""
    keeper, clock = kept
    clock.now += 10 * TTL
    keeper.check()
    assert get(store).sequence == 1
