"""The identity of a run: the settings that its bytes depend on; its digest is the first commit's parent."""

from typing import Any

import pytest

from penstock.storage.digest import canonical_json, digest
from penstock.tasks.setup.config.loading import build_config, merge
from penstock.tasks.setup.config.replay import build_stored_config
from penstock.tasks.setup.config.run import TrainConfig


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"store": "elsewhere"},
        {"distribution": {"act_tasks": 2}},
        {"distribution": {"env_tasks": 2}},
        {"distribution": {"device": "cpu"}},
        {
            "cluster": {
                "scheduler": "tcp://127.0.0.1:1",
                "lease_seconds": 3.0,
                "cache_limit_bytes": 1 << 30,
                "read_budget_bytes": 1 << 25,
                "upload_threads": 2,
                "upload_budget_bytes": 1 << 20,
            }
        },
        {"distribution": {"snapshot_dtype": "float32"}},
        {"shards": {"compression": {}, "stacked": []}},
        {"schedule": {"max_stages": 3}},
    ],
)
def test_location_and_duration_are_not_part_of_the_identity(change: dict[str, Any]):
    """Runs that differ in these alone make the same bytes."""
    base = {"environment": {"num_envs": 8, "envs_per_tile": 4}}
    assert build_config(merge(base, change)).identity() == build_config(base).identity()


def test_settings_at_their_defaults_keep_the_identity_of_runs_before_them():
    """A setting that came later is left out where it is at its default: older runs keep their first commit's parent."""
    assert digest(canonical_json(TrainConfig().identity())) == "b7aeca265c30021afd729369a5c904a6"


def test_stored_placement_settings_are_read_as_distribution():
    """A `run.json` from before the table's new name resumes with the same settings and identity."""
    config = build_config({"environment": {"num_envs": 8, "envs_per_tile": 4}, "distribution": {"act_tasks": 2}})
    stored = config.model_dump(mode="json")
    stored["placement"] = stored.pop("distribution")
    read = build_stored_config(stored)
    assert read == config
    assert read.identity() == config.identity()
    assert "placement" in read.identity()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"environment": {"num_envs": 16}},
        {"environment": {"envs_per_tile": 8}},
        {"environment": {"settings": {"gravity": 5.0}}},
        {"algorithm": {"learning_rate": 1e-2}},
        {"schedule": {"lag": 1}},
        {"schedule": {"rounds_per_stage": 3}},
        {"distribution": {"gradient_block_rows": 100}},
        {"distribution": {"torch_threads": 2}},
        {"distribution": {"snapshot_dtype": "int8"}},
        {"distribution": {"policy": "multiple_learners"}},
        {"shards": {"compression": {"observation": "lz4"}}},
        {"shards": {"stacked": ["observation"]}},
    ],
)
def test_settings_that_determine_bytes_are_the_identity(change: dict[str, Any]):
    """And it is plain JSON, so that its digest can be the first commit's parent."""
    base = {"environment": {"num_envs": 8, "envs_per_tile": 4}}
    changed = build_config(merge(base, change)).identity()
    assert canonical_json(changed) != canonical_json(build_config(base).identity())
