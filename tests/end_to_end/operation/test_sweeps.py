"""Sweeps train, stop and copy runs, and end with the same bytes whether they are killed or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.stores.open import open_store

from ...support.processes.commands import wait_until
from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import BRIEF
from .test_finished_run import ask

if TYPE_CHECKING:
    from pathlib import Path

# Each run of a sweep is a process of its own.
pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys
from penstock.flows import sweep
name, parameters = json.loads(sys.argv[1])
getattr(sweep, name)(**parameters)
"""
POPULATION = {
    "name": "pbt",
    "space": {"learning_rate": {"low": 0.001, "high": 0.1, "log": True}},
    "population_size": 2,
    "replaced_share": 0.5,
}


class Sweep:
    """A sweep's flow in a process group of its own, so that it is killed with the runs that it trains."""

    def __init__(self, bench: Any, flow: str, store: Path | str, parameters: dict[str, Any]) -> None:
        self.store = open_store(store)
        config = {
            "store": str(store),
            "environment": {"num_envs": 8, "envs_per_tile": 4},
            "algorithm": {"hidden": [8], "epochs": 1, "minibatches": 2},
            "schedule": {"round_steps": 16, "rounds_per_stage": 4, "max_stages": 3, "evaluation_episodes": 2},
            "cluster": {"scheduler": bench.scheduler, "lease_seconds": 6.0, "gang_seconds": 300.0},
        }
        order = json.dumps([flow, {**parameters, "config": config}])
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, order],
            env={**os.environ, **bench.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def succeed(self) -> None:
        output, _ = self._process.communicate(timeout=500)
        assert self._process.returncode == 0, output.decode()

    def kill_once(self, name: str) -> None:
        """Kill the process group by SIGKILL as soon as an object of that name is stored."""
        wait_until(lambda: self.store.exists(name) or self._process.poll() is not None, name)
        assert self._process.poll() is None, self._process.communicate()[0].decode()
        self.kill()

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def records(self) -> dict[str, bytes]:
        """Return the decisions."""
        return {name: self.store.read(name) for name in self.store.list(".sweeps/") if "/exchanges/" in name}


def stored(store: Path, name: str) -> dict[str, bytes]:
    """Return what a run is made of; a copy has the snapshots and states of the commit that it began from alone."""
    run = StoredRun(str(store), name)
    newest = run.commits()[-1]
    named = [ref["name"] for ref in (*newest["snapshots"], *newest["states"])]
    listed = [name for kind in ("shards/", "checkpoints/", "commits/") for name in run.store.list(kind)]
    return {name: run.store.read(name) for name in {*named, *listed}}


def test_a_killed_population_ends_with_the_same_runs(bench, tmp_path):
    """It is killed once its first decision is recorded, and again while a copy trains; no byte of any run differs."""
    sweeps = []
    try:
        sweeps.append(whole := Sweep(bench, "population", tmp_path / "whole", POPULATION))
        whole.succeed()
        for name in (".sweeps/pbt/exchanges/0000.json", "pbt-i000-x0000/commits/00000001.json"):
            sweeps.append(killed := Sweep(bench, "population", tmp_path / "killed", POPULATION))
            killed.kill_once(name)
        sweeps.append(resumed := Sweep(bench, "population", tmp_path / "killed", {**POPULATION, "runs_at_once": 2}))
        resumed.succeed()
    finally:
        for each in sweeps:
            each.kill()
    assert resumed.records() == whole.records()
    copies = [copy for record in whole.records().values() for copy in json.loads(record)["copies"]]
    assert len(copies) == 2
    for run in ("pbt-i000-x0000", "pbt-i001-x0000", *(copy["run"] for copy in copies)):
        assert stored(tmp_path / "killed", run) == stored(tmp_path / "whole", run)
    copied = StoredRun(str(tmp_path / "whole"), copies[0]["run"])
    described = copied.folder.load()
    assert described["config"]["algorithm"]["learning_rate"] == copies[0]["values"]["algorithm.learning_rate"]
    assert described["identity"]["continues"] == StoredRun(
        str(tmp_path / "whole"), described["forked_from"]["run"]
    ).folder.log.digest_of(described["forked_from"]["stage"])
    bench.penstock("verify", copied.name, "--store", str(tmp_path / "whole")).succeed()
    values = ["--continues", described["identity"]["continues"]]
    bench.train("made-up", BRIEF, *values).refuse("Penstock sets this where a population copies a run")


def test_runs_left_at_a_rung_stop_at_its_stage(bench, prefect_api, tmp_path):
    """They have exactly the rung's commits and can be resumed; the page shows a table and a picture."""
    parameters = {
        "name": "halved",
        "space": {"learning_rate": [0.001, 0.01]},
        "runs": 2,
        "reduction": 2,
        "first_stages": 1,
        "runs_at_once": 2,
    }
    sweep = Sweep(bench, "halve", tmp_path / "runs", parameters)
    try:
        sweep.succeed()
    finally:
        sweep.kill()
    left = json.loads(sweep.store.read(".sweeps/halved/table.json"))[-1]
    run = StoredRun(str(tmp_path / "runs"), left["run"])
    assert (left["stages"], left["rung"], len(run.commits())) == (1, 0, 1)
    bench.resume(run.name, store=run.url).succeed()
    assert len(run.commits()) == 3
    keys = {"any_": ["halved-sweep", "halved-parallel-coordinates"]}
    found = ask(prefect_api, "artifacts/filter", {"artifacts": {"key": keys}})
    kinds = {each["key"]: each["type"] for each in found}
    assert kinds["halved-sweep"] == "table"
    assert kinds["halved-parallel-coordinates"] == "markdown"


def test_a_grid_on_s3_trains_the_runs_of_one_in_a_folder(bench, tmp_path, s3_server, s3_url):
    """It is killed once its first run has a commit; runs and table are those of a grid that is in a folder."""
    bench.environment = {**bench.environment, **s3_server.environment}
    parameters = {"name": "rates", "grid": {"learning_rate": [0.001, 0.01]}}
    sweeps = []
    try:
        sweeps.append(local := Sweep(bench, "sweep", tmp_path / "runs", parameters))
        local.succeed()
        table = json.loads(local.store.read(".sweeps/rates/table.json"))
        first = next(row["run"] for row in table if row["algorithm.learning_rate"] == 0.001)
        sweeps.append(killed := Sweep(bench, "sweep", s3_url, parameters))
        killed.kill_once(f"{first}/commits/00000000.json")
        sweeps.append(resumed := Sweep(bench, "sweep", s3_url, parameters))
        resumed.succeed()
    finally:
        for each in sweeps:
            each.kill()
    assert json.loads(resumed.store.read(".sweeps/rates/table.json")) == table
    assert resumed.store.read(".sweeps/rates/parallel_coordinates.svg").startswith(b"<svg")
    assert len(table) == 2
    for row in table:
        assert_same(StoredRun(s3_url, row["run"]), StoredRun(str(tmp_path / "runs"), row["run"]).content())


SEARCH = {"trials": 2, "startup_trials": 2}
HALVING = {"runs": 2, "reduction": 2, "first_stages": 1}


@pytest.mark.parametrize(("flow", "more"), [("search", SEARCH), ("halve", HALVING)])
def test_a_run_that_diverges_is_the_worst_of_its_sweep(bench, tmp_path, flow, more):
    """The sweep goes on without it, says why, and repeated it has the same table."""
    parameters = {"name": "some", "space": {"learning_rate": [1e30, 0.01]}, **more}
    tables = []
    for _ in range(2):
        sweep = Sweep(bench, flow, tmp_path / "runs", parameters)
        try:
            sweep.succeed()
        finally:
            sweep.kill()
        tables.append(json.loads(sweep.store.read(".sweeps/some/table.json")))
    best, worst = tables[0]
    assert (best["algorithm.learning_rate"], best["stages"], best["problem"]) == (0.01, 3, None)
    assert (worst["algorithm.learning_rate"], worst["stages"], worst["return"]) == (1e30, 0, None)
    assert worst["problem"].startswith("stage 0 diverged: ")
    assert tables[1] == tables[0]
