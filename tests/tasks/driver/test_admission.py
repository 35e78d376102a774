"""Admission: a gang fits as a whole, waits for its slots, or is refused with the reason."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import dask
import pytest
from distributed import Client, Event, Scheduler, SpecCluster, Worker

from penstock.storage.errors import GangRefusedError
from penstock.tasks.driver import admission
from penstock.tasks.driver.admission import Allocation, admitted, allocated, shortages
from penstock.tasks.driver.cluster import Cluster, Clusters
from penstock.tasks.driver.worker_slots import WorkerSlots
from penstock.tasks.setup.distribution.policies import DistributionPolicy, Role, central, single_learner_coarse

LONG_SECONDS = 150.0
_numbers = itertools.count()


def worker(threads: int = 64, **resources: float) -> WorkerSlots:
    return {"address": "", "all": resources, "free": dict(resources), "threads": threads, "tasks": []}


# Counting places


def test_a_gang_that_fits_lacks_nothing():
    """Spread over workers, or several on one, with others beside."""
    places = [worker(actor=2.0), worker(actor=1.0, GPU=1.0), worker(learner=1.0), worker()]
    assert shortages(single_learner_coarse(3), places, "all") == []
    assert shortages(single_learner_coarse(3), [worker(actor=3.0, learner=1.0)], "free") == []


def test_every_role_that_lacks_places_is_named():
    """With how many there are and what one takes."""
    assert shortages(single_learner_coarse(3), [worker(actor=1.0), worker(actor=1.0)], "all") == [
        "3 slots with actor=1 for 'act', found 2",
        "1 slots with learner=1 for 'learn', found 0",
    ]
    assert shortages(single_learner_coarse(1), [], "all") == [
        "1 slots with actor=1 for 'act', found 0",
        "1 slots with learner=1 for 'learn', found 0",
    ]


def test_learners_and_their_server_are_counted_apart():
    """Two places for three learners, and none for a server: a line each, as the refusal has it."""
    assert shortages(central(2), [worker(learner=1.0), worker(learner=1.0, server=1.0)], "all") == []
    assert shortages(central(3), [worker(learner=1.0), worker(learner=1.0)], "all") == [
        "3 slots with learner=1 for 'worker', found 2",
        "1 slots with server=1 for 'server', found 0",
    ]


def test_a_worker_has_no_more_slots_than_threads():
    """A member without a thread would never report, whatever resources its worker has."""
    assert shortages(single_learner_coarse(3), [worker(threads=2, actor=8.0), worker(learner=1.0)], "all") == [
        "3 slots with actor=1 for 'act', found 2"
    ]
    for kind in ("all", "free"):
        assert shortages(single_learner_coarse(3), [worker(threads=3, actor=3.0, learner=1.0)], kind) == []


def test_roles_may_share_workers_that_have_threads_for_each_of_them_alone():
    """A gang that may fit is not refused: Dask says which worker a member gets."""
    both = [worker(threads=2, actor=2.0, learner=1.0), worker(threads=2, actor=1.0, memory=1.0)]
    assert shortages(single_learner_coarse(3), both, "all") == []


def test_free_and_all_are_counted_apart():
    """A place that is taken now is not lacking for ever."""
    busy: WorkerSlots = {
        "address": "",
        "all": {"actor": 2.0, "learner": 1.0},
        "free": {"actor": 0.0, "learner": 1.0},
        "threads": 4,
        "tasks": [],
    }
    assert shortages(single_learner_coarse(2), [busy], "all") == []
    assert shortages(single_learner_coarse(2), [busy], "free") == ["2 slots with actor=1 for 'act', found 0"]


def policy_of(*roles: tuple[str, int, dict[str, float]]) -> DistributionPolicy:
    """A policy with these roles; the first holds all fragments."""
    everything = single_learner_coarse(1).roles
    fragments = [everything[0].fragments | everything[1].fragments] + [frozenset()] * (len(roles) - 1)
    return DistributionPolicy(
        "mine",
        tuple(
            Role(name, held, replicas, tuple(resources.items()))
            for (name, replicas, resources), held in zip(roles, fragments, strict=True)
        ),
    )


def test_a_place_has_all_of_its_resources_on_one_worker():
    """A GPU here and memory there are no place for a task that needs both."""
    both = policy_of(("work", 2, {"GPU": 1.0, "memory": 4.0}))
    apart = [worker(GPU=2.0), worker(memory=8.0)]
    assert shortages(both, apart, "all") == ["2 slots with GPU=1, memory=4 for 'work', found 0"]
    assert shortages(both, [worker(GPU=2.0, memory=7.0)], "all") == ["2 slots with GPU=1, memory=4 for 'work', found 1"]
    assert shortages(both, [worker(GPU=2.0, memory=8.0)], "all") == []


def test_roles_share_what_a_worker_has():
    """Slots that one role takes are gone for the next."""
    policy = policy_of(("one", 2, {"slot": 1.0}), ("two", 2, {"slot": 1.0}))
    assert shortages(policy, [worker(slot=3.0)], "all") == ["2 slots with slot=1 for 'two', found 1"]
    assert shortages(policy, [worker(slot=3.0), worker(slot=1.0)], "all") == []


@pytest.mark.parametrize("first", ["with a GPU", "without"])
def test_a_gang_that_fits_gets_in_in_whatever_order_workers_are(first):
    """The role that needs less leaves the worker that has more to the one that needs it."""
    roles = (
        Role("act", frozenset({"act"}), 1, (("actor", 1.0),)),
        Role("trainer", frozenset({"learn"}), 1, (("actor", 1.0), ("GPU", 1.0))),
    )
    workers = [worker(actor=1, GPU=1), worker(actor=1)]
    if first == "without":
        workers.reverse()
    found = allocated(roles, {"act": [0], "trainer": [0]}, [workers], "all")
    assert found.lacking == []
    assert list(found.by_role) == ["act", "trainer"]


def test_counting_changes_no_worker():
    """It may be done again with the same answer."""
    places = [worker(actor=1.0, learner=1.0)]
    assert shortages(single_learner_coarse(1), places, "free") == []
    assert shortages(single_learner_coarse(1), places, "free") == []
    assert places == [worker(actor=1.0, learner=1.0)]


def test_members_are_shared_out_among_clusters():
    """Each goes where its role has the fewest, of those with room; a role sees no place of a cluster not its own."""
    policy = single_learner_coarse(4)
    places = [[worker(actor=1.0)], [worker(actor=2.0), worker(actor=5.0)], [worker(learner=1.0, actor=9.0)]]
    may_use = {"act": [0, 1], "learn": [2]}
    found = allocated(policy.roles, may_use, places, "free")
    assert (found.by_role, found.lacking) == ({"act": [0, 1, 1, 1], "learn": [2]}, [])
    short = allocated(policy.roles, {"act": [0], "learn": [1]}, places, "free", ["a", "b", "c"])
    assert short.lacking == [
        "4 slots with actor=1 for 'act', found 1 at a",
        "1 slots with learner=1 for 'learn', found 0 at b",
    ]


def test_roles_that_may_shrink_take_what_is_left():
    """As few as needed where there is no more, as many as there are otherwise, and never what another role needs."""
    policy = single_learner_coarse(4, 2)
    assert shortages(policy, [worker(actor=1.0, learner=1.0)], "free") == ["2 slots with actor=1 for 'act', found 1"]
    may_use = {"act": [0], "learn": [0]}
    for places, members in ((2, 2), (3, 3), (9, 4)):
        found = allocated(policy.roles, may_use, [[worker(actor=float(places), learner=1.0)]], "free")
        assert (len(found.by_role["act"]), found.lacking) == (members, [])
    act, learn = policy.roles
    shared = replace(
        policy,
        roles=(
            replace(act, resources=(("slot", 1.0),), fewest=1),
            replace(learn, replicas=2, resources=(("slot", 1.0),)),
        ),
    )
    found = allocated(shared.roles, may_use, [[worker(slot=4.0)]], "free")
    assert {role: len(taken) for role, taken in found.by_role.items()} == {"act": 2, "learn": 2}


# On a cluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A real scheduler and real workers in this process: two places for actors, one for a learner."""
    workers = {
        name: {
            "cls": Worker,
            "options": {"nthreads": 2, "resources": resources, "dashboard": False, "dashboard_address": "127.0.0.1:0"},
        }
        for name, resources in (("a", {"actor": 2.0}), ("b", {"learner": 1.0}))
    }
    scheduler = {
        "cls": Scheduler,
        "options": {"dashboard": False, "dashboard_address": "127.0.0.1:0", "protocol": "inproc://"},
    }
    with (
        dask.config.set(
            {"distributed.worker.memory.terminate": False, "distributed.admin.system-monitor.gil.enabled": False}
        ),
        SpecCluster(workers=workers, scheduler=scheduler, silence_logs=40) as cluster,
        Client(cluster, set_as_default=False) as connected,
    ):
        connected.wait_for_workers(2, timeout=LONG_SECONDS)
        yield connected


@pytest.fixture
def other_gang(client: Client) -> Iterator[Event]:
    """An act task of the run 'other' that holds one actor's place until the event is set."""
    # New names each time: the scheduler may still know the task and the events of the test before.
    number = next(_numbers)
    leave, entered = Event(f"leave-{number}", client=client), Event(f"entered-{number}", client=client)
    future = client.submit(
        hold,
        leave.name,
        entered.name,
        key=f"act-0 penstock/other/3.0/g run-{number}",
        resources={"actor": 1.0},
        pure=False,
    )
    assert entered.wait(LONG_SECONDS)
    yield leave
    leave.set()
    future.result(LONG_SECONDS)


@contextmanager
def admitted_to(
    client: Client, policy: DistributionPolicy, run: str, seconds: float, *, was_large_enough: bool = False
) -> Iterator[Allocation]:
    """Addresses of a cluster that holds all roles."""
    told = client.scheduler_info(n_workers=0)
    cluster = Cluster(client, told["id"], told["address"])
    clusters = Clusters({role.name: (cluster,) for role in policy.roles})
    with admitted(clusters, policy, run, seconds, was_large_enough=was_large_enough) as allocation:
        yield allocation


def hold(leave: str, entered: str) -> None:
    Event(entered).set()
    Event(leave).wait()


def test_a_gang_that_fits_gets_in(client: Client):
    """Again and again: each leaves the lock as it found it, also when what is inside fails."""
    for _ in range(2):
        with admitted_to(client, single_learner_coarse(2), "mine", LONG_SECONDS):
            pass
    with (
        pytest.raises(ZeroDivisionError),
        admitted_to(client, single_learner_coarse(2), "mine", LONG_SECONDS),
    ):
        _ = 1 / 0
    with admitted_to(client, single_learner_coarse(2), "mine", LONG_SECONDS):
        pass


def test_a_cluster_that_is_too_small_refuses(client: Client, monkeypatch: pytest.MonkeyPatch):
    """With what is lacking, long before the time for waiting is over, once no worker could still be restarting."""
    monkeypatch.setattr(admission, "_RESTART_SECONDS", 0.2)
    with pytest.raises(GangRefusedError) as caught, admitted_to(client, single_learner_coarse(3), "mine", LONG_SECONDS):
        pass
    said = str(caught.value)
    assert "run 'mine' needs 3 slots with actor=1 for 'act', found 2 on the cluster at inproc://" in said
    assert "even when it is idle" in said


def test_a_cluster_that_was_large_enough_is_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch):
    """A worker that was told to end may be replaced. Meanwhile others get in; at last it is refused with what lacks."""
    monkeypatch.setattr(admission, "_RESTART_SECONDS", 0.2)
    refused: list[str] = []
    others_are_done = threading.Event()

    def monotonic() -> float:
        return time.monotonic() + LONG_SECONDS * others_are_done.is_set()

    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))

    def wait() -> None:
        policy = single_learner_coarse(3)
        inside = admitted_to(client, policy, "mine", LONG_SECONDS, was_large_enough=True)
        with pytest.raises(GangRefusedError) as caught, inside:
            pass
        refused.append(str(caught.value))

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(2):
        with admitted_to(client, single_learner_coarse(2), "other", LONG_SECONDS):
            assert not refused
    others_are_done.set()
    thread.join(LONG_SECONDS)
    assert "3 slots with actor=1 for 'act', found 2" in refused[0]


def test_a_gang_waits_for_its_places(client: Client, other_gang: Event):
    """Two places are wanted and one is free: nobody gets in before the other gang has left."""
    happened: list[str] = []
    looks = threading.Semaphore(0)
    places = admission._slots

    def watched(cluster: Cluster) -> list[WorkerSlots]:
        found = places(cluster)
        looks.release()
        return found

    def get_in() -> None:
        with admitted_to(client, single_learner_coarse(2), "mine", LONG_SECONDS):
            happened.append("in")

    thread = threading.Thread(target=get_in)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "_slots", watched)
        thread.start()
        assert looks.acquire(timeout=LONG_SECONDS)
        assert looks.acquire(timeout=LONG_SECONDS), "it should look again, and not have got in"
        happened.append("leaves")
        other_gang.set()
        thread.join(LONG_SECONDS)
    assert happened == ["leaves", "in"]


def test_whoever_takes_the_places_is_named(client: Client, other_gang: Event):
    """When the time is over: the run in the way, what is lacking, and what to do."""
    with pytest.raises(GangRefusedError) as caught, admitted_to(client, single_learner_coarse(2), "mine", 0.2):
        pass
    said = str(caught.value)
    assert "run 'mine' waited 0.2 s for 2 slots with actor=1 for 'act', found 1" in said
    assert "are occupied by: other." in said
    assert "cluster.admission_seconds" in said


def test_a_gang_beside_another_gets_in_if_both_fit(client: Client, other_gang: Event):
    """One actor's place is left, and one is wanted."""
    with admitted_to(client, single_learner_coarse(1), "mine", LONG_SECONDS):
        pass


def test_gangs_are_admitted_one_after_the_other(client: Client):
    """While one is being admitted another waits for its turn, though there are places for both as yet."""
    inside = admitted_to(client, single_learner_coarse(1), "first", LONG_SECONDS)
    with (
        inside,
        pytest.raises(GangRefusedError, match=r"run 'second' waited 0\.2 s for its turn"),
        admitted_to(client, single_learner_coarse(1), "second", 0.2),
    ):
        pass
    with admitted_to(client, single_learner_coarse(1), "second", LONG_SECONDS):
        pass
