"""`penstock resume` without a name chooses the newest unfinished run that no flow drives."""

from __future__ import annotations

import pytest

from penstock.flows.support.find_resumable import unfinished_config
from penstock.flows.sweeps.records import SweepRecords
from penstock.storage.errors import RunNotFoundError
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.run import ClusterSettings

CLUSTER = ClusterSettings(lease_seconds=0.5, act_workers=2)


@pytest.fixture
def store(tmp_path):
    """Return a store with two runs without commits; the newer one is not the last by name."""
    root = open_store(str(tmp_path))
    for name, day in (("newer", "2026-01-02"), ("older", "2026-01-01")):
        config = build_config({"name": name, "seed": 3}).model_dump(mode="json", exclude={"store", "cluster"})
        RunFolder(root, name).create({"config": config, "created": f"{day}T00:00:00+00:00"})
    return root


def test_the_newest_run_without_a_driver_is_resumed(store):
    """It keeps its settings and gets the given cluster; a run with a driver is skipped."""
    found = unfinished_config(store.url, None, CLUSTER)
    assert (found.name, found.seed, found.store, found.cluster.act_workers) == ("newer", 3, store.url, 2)
    with acquire(RunFolder(store, "newer").store, "somebody", 0.5):
        assert unfinished_config(store.url, None, CLUSTER).name == "older"
        with acquire(RunFolder(store, "older").store, "somebody", 0.5):
            assert unfinished_config(store.url, None, CLUSTER) is None


def test_a_named_run_is_resumed(store, tmp_path):
    """A named run is resumed however old it is; a missing one is an error, and an empty store has none."""
    assert unfinished_config(store.url, "older", CLUSTER).name == "older"
    with pytest.raises(RunNotFoundError, match="nowhere"):
        unfinished_config(store.url, "nowhere", CLUSTER)
    assert unfinished_config(str(tmp_path / "empty"), None, CLUSTER) is None


@pytest.mark.parametrize(
    ("method", "name", "is_left"),
    [
        ("search", "newer-0001", True),
        ("halve", "newer-0012", True),
        ("population", "newer-i3-x0", True),
        ("sweep", "newer-0001", False),
        ("search", "newer-1a2b3c4d", False),
        ("search", "newer-2-0001", False),
    ],
)
def test_a_run_that_a_search_has_stopped_is_left_to_it(store, method, name, is_left):
    """A grid trains all of its runs to the end, so that any of them may go on; so may others with such a name."""
    SweepRecords(store.url, "newer").begin(method, {})
    config = build_config({"name": name}).model_dump(mode="json", exclude={"store", "cluster"})
    RunFolder(store, name).create({"config": config, "created": "2026-01-03T00:00:00+00:00"})
    expected = "older" if is_left else name
    with acquire(RunFolder(store, "newer").store, "somebody", 0.5):
        assert unfinished_config(store.url, None, CLUSTER).name == expected
