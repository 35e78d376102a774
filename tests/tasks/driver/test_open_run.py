"""A run is created once, and goes on with its stored settings but for its place, device and numbers of tasks."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from penstock.storage.errors import ConfigError, LeaseHeldError, RunExistsError
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import describe_run, drive_run, open_run
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.resolve import IfExists, ResolvedRun


def resolved(store: Path, if_exists: IfExists, *, exists: bool, **distribution: object) -> ResolvedRun:
    config = build_config({"name": "mine", "store": str(store), "seed": 1, "distribution": distribution})
    return ResolvedRun(
        config,
        if_exists,
        open_store(store),
        exists=exists,
        newest_stage=None,
        policy=config.make_policy(),
        is_fenced=True,
    )


def store_run(store: Path, **distribution: object) -> None:
    config = build_config({"name": "mine", "store": str(store), "seed": 7, "distribution": distribution})
    RunFolder(open_store(store), "mine").create(describe_run(config))


def test_a_run_that_another_flow_created_meanwhile_is_resumed_if_asked(tmp_path):
    """Two flows of one sweep begin the same run: the later one finds it, with the settings of the earlier one."""
    store_run(tmp_path)
    assert open_run(resolved(tmp_path, "resume", exists=False)).config.seed == 7
    with pytest.raises(RunExistsError, match="'mine'"):
        open_run(resolved(tmp_path, "refuse", exists=False))


def test_a_run_is_not_created_where_objects_of_another_one_are(tmp_path):
    """As an interrupted copy leaves them, whose `run.json` comes last."""
    RunFolder(open_store(tmp_path), "mine").store.write("commits/00000000.json", [b"{}"])
    with pytest.raises(ConfigError, match=r"such as 'commits/00000000\.json': a fork, copy or import was interrupted"):
        open_run(resolved(tmp_path, "refuse", exists=False))
    assert not RunFolder(open_store(tmp_path), "mine").exists()


def test_a_run_is_not_created_where_a_fork_of_its_name_is_made(tmp_path):
    """Otherwise the one's `run.json` would stand beside the other's commits."""
    wanted = resolved(tmp_path, "refuse", exists=False)
    with (
        acquire(wanted.run.store, "a fork", 30.0),
        pytest.raises(LeaseHeldError, match="a fork"),
        drive_run(wanted, lambda _: None),
    ):
        pass
    assert not wanted.run.exists()


@pytest.mark.parametrize("given", [{}, {"device": "cpu"}, {"device": "auto"}])
def test_a_run_may_move_to_another_device(tmp_path, given):
    """A run of a GPU is resumed where there is none, if its user says so; a name alone keeps the stored device."""
    store_run(tmp_path, device="cuda")
    opened = open_run(resolved(tmp_path, "resume", exists=True, **given))
    assert opened.config.distribution.device == given.get("device", "cuda")


@pytest.mark.parametrize(
    ("stored", "said"), [("gymnasium 0.1, mujoco 4.0.0", "environment gymnasium 0.1, mujoco 4.0.0 -> "), (None, "")]
)
def test_another_package_of_models_is_said(tmp_path, caplog, stored, said):
    """Robots are files of Gymnasium's: a run goes on with those that are installed, and says so if it knows."""
    config = build_config({"name": "mine", "store": str(tmp_path), "environment": {"id": "InvertedPendulum-v5"}})
    description = describe_run(config)
    made_with: Any = description["made_with"]
    assert made_with.pop("environment") == f"gymnasium {version('gymnasium')}, mujoco {version('mujoco')}"
    RunFolder(open_store(tmp_path), "mine").create(
        {**description, "made_with": {**made_with, **({"environment": stored} if stored else {})}}
    )
    open_run(resolved(tmp_path, "resume", exists=True))
    warned = [record.getMessage() for record in caplog.records if "other software" in record.getMessage()]
    assert len(warned) == bool(said)
    assert all(f"bytes may differ from now on: {said}gymnasium" in text for text in warned)


def test_numbers_of_tasks_that_were_not_given_stay(tmp_path):
    """A flow that names the run alone asks for no others; with a quorum below 1, fewer would leave tiles out."""
    tiles = {"num_envs": 8, "envs_per_tile": 2}
    config = build_config(
        {
            "name": "mine",
            "store": str(tmp_path),
            "environment": tiles,
            "distribution": {"act_tasks": 4, "quorum": 0.5},
            "algorithm": {"minibatches": 1},
        }
    )
    RunFolder(open_store(tmp_path), "mine").create(describe_run(config))
    assert open_run(resolved(tmp_path, "resume", exists=True)).config.distribution.act_tasks == 4
    wanted = resolved(tmp_path, "resume", exists=True)
    fewer = config.distribution.model_copy(update={"act_tasks": 2})
    with pytest.raises(ConfigError, match="2 act tasks share 4 tiles"):
        open_run(replace(wanted, config=config.model_copy(update={"distribution": fewer})))
