"""The settings with which a run is resumed: the stored ones, and whose business it is where, from the caller alone."""

from pathlib import Path

from penstock.flows.api.run import Run
from penstock.flows.support.find_resumable import stored_config
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import describe_run
from penstock.tasks.setup.config.cluster import ClusterSettings
from penstock.tasks.setup.config.loading import build_config

FORGED = {
    "cluster": {
        "callbacks": ["planted:Callback"],
        "schedulers": {"act": ["tcp://127.0.0.1:9"], "learn": ["tcp://127.0.0.1:9"]},
        "track": ["mlflow:http://127.0.0.1:9"],
        "cache_folder": "/elsewhere",
        "lease_seconds": 77.0,
    },
    "store": "s3://elsewhere/runs",
}


def test_a_stored_run_chooses_no_cluster(tmp_path: Path):
    """A resume would connect to its schedulers, import its callbacks and write to its folders."""
    run = RunFolder(open_store(tmp_path), "forged")
    description = describe_run(build_config({"name": "forged", "environment": {"id": "CartPole-v1"}}))
    run.create({**description, "config": {**description["config"], **FORGED}})
    given = {"cluster": {"gang_seconds": 12.0}}
    resumed = stored_config(str(tmp_path), "forged", given)
    assert resumed.cluster == ClusterSettings(gang_seconds=12.0)
    assert resumed.store == str(tmp_path)
    assert Run("forged", store=tmp_path).config.cluster == ClusterSettings()
