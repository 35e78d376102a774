"""A Dask scheduler that goes away is told from other failures, and waited for with the places of the gang."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
from distributed import Scheduler, SpecCluster, Worker

import penstock.tasks.driver.cluster
from penstock.storage.errors import ConfigError, GangError, SchedulerLostError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver import recovery
from penstock.tasks.driver.cluster import connected
from penstock.tasks.driver.recovery import lost_schedulers, wait_for_clusters
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.run import TrainConfig

from ...support.stored.leases import Clock

pytestmark = pytest.mark.cluster

PATIENCE_SECONDS = 150.0
HERE = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}


@contextmanager
def cluster(address: str = ":0", **resources: float) -> Iterator[str]:
    """A scheduler that is spoken to by TCP, and a worker with these places; its address."""
    scheduler = {"cls": Scheduler, "options": {**HERE, "port": int(address.rpartition(":")[2])}}
    worker = {"cls": Worker, "options": {**HERE, "nthreads": 1, "resources": resources}}
    with (
        dask.config.set({"distributed.admin.system-monitor.gil.enabled": False}),
        SpecCluster(workers={0: worker}, scheduler=scheduler, silence_logs=50) as one,
    ):
        yield one.scheduler_address


def where_of(learner: str, actors: str, seconds: float) -> TrainConfig:
    where = {"scheduler": learner, "schedulers": {"act": actors}, "admission_seconds": seconds}
    config = build_config({"name": "lost", "environment": {"id": "CartPole-v1"}, "cluster": where})
    return config.make_policy(), config.cluster


def test_who_is_gone_is_named_where_that_may_be_why():
    """One scheduler of two, also when another has its address by now; never for an error about something else."""
    failure, of_its_own = GangError("a member was lost"), ConfigError("a setting is wrong")
    with ExitStack() as stack:
        learner = stack.enter_context(cluster(learner=1.0))
        with cluster(actor=1.0) as actors:
            clusters = stack.enter_context(connected(*where_of(learner, actors, PATIENCE_SECONDS)))
            assert lost_schedulers(clusters, failure) == []
        assert lost_schedulers(clusters, failure) == [actors]
        assert lost_schedulers(clusters, of_its_own) == []
        with cluster(actors, actor=1.0):
            assert lost_schedulers(clusters, OSError("a connection broke")) == [actors]


def test_all_that_are_named_are_waited_for_with_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """For a scheduler, then for its worker; not longer than is allowed, and then with what was lacking."""
    run = RunFolder(open_store(tmp_path), "lost")
    with ExitStack() as one, ExitStack() as other:
        stacks = {stack.enter_context(cluster(learner=1.0)): stack for stack in (one, other)}
        actors, learner = sorted(stacks)  # the first is asked first
        short = where_of(learner, actors, 3.0)
        with monkeypatch.context() as patch:
            clock = Clock()
            patch.setattr(recovery, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
            with pytest.raises(SchedulerLostError, match=f"1 slots with actor=1 for 'act', found 0 at {actors}"):
                wait_for_clusters(run, *short)
            assert sum(clock.sleeps) == 3.0
            stacks[actors].close()
            patch.setattr(penstock.tasks.driver.cluster, "_CONNECT_SECONDS", 0.2)
            with pytest.raises(SchedulerLostError, match=f"waited 3 s for a Dask scheduler at {actors}"):
                wait_for_clusters(run, *short)
            assert sum(clock.sleeps) == 6.0
        patient = where_of(learner, actors, PATIENCE_SECONDS)
        waiting = threading.Thread(target=wait_for_clusters, args=(run, *patient))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        with cluster(actors, actor=1.0):
            waiting.join(PATIENCE_SECONDS)
            assert not waiting.is_alive()
