"""Which run is gone on with where nobody names one."""

from __future__ import annotations

import pytest

from flows.resuming import unfinished_config
from storage.errors import RunNotFoundError
from storage.lease import acquire
from storage.run import RunFolder
from storage.store import open_store
from tasks.config import ClusterSettings, build_config

CLUSTER = ClusterSettings(lease_seconds=0.5, act_workers=2)


@pytest.fixture
def store(tmp_path):
    """Two runs that have committed nothing yet; the newer one is not the last by name."""
    root = open_store(str(tmp_path))
    for name, day in (("newer", "2026-01-02"), ("older", "2026-01-01")):
        config = build_config({"name": name, "seed": 3}).model_dump(mode="json", exclude={"store", "cluster"})
        RunFolder(root, name).create({"config": config, "created": f"{day}T00:00:00+00:00"})
    return root


def test_the_newest_run_that_nobody_drives_goes_on(store):
    """With its own settings, on the cluster that is given; one that is driven is left to who drives it."""
    found = unfinished_config(store.url, None, CLUSTER)
    assert (found.name, found.seed, found.store, found.cluster.act_workers) == ("newer", 3, store.url, 2)
    with acquire(RunFolder(store, "newer").store, "somebody", 0.5):
        assert unfinished_config(store.url, None, CLUSTER).name == "older"
        with acquire(RunFolder(store, "older").store, "somebody", 0.5):
            assert unfinished_config(store.url, None, CLUSTER) is None


def test_a_run_that_is_named_goes_on(store, tmp_path):
    """However old it is; one that is not there is an error, and a store without runs has none."""
    assert unfinished_config(store.url, "older", CLUSTER).name == "older"
    with pytest.raises(RunNotFoundError, match="nowhere"):
        unfinished_config(store.url, "nowhere", CLUSTER)
    assert unfinished_config(str(tmp_path / "empty"), None, CLUSTER) is None
