"""Workers on Slurm: the jobs that would be submitted. There is no Slurm here, so none is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from penstock import tasks

DEPLOY = Path(tasks.__path__[0]).resolve().parent / "deploy"


def show(folder, *arguments):
    command = [sys.executable, DEPLOY / "slurm/workers.py", "--show", *arguments]
    environment = {**os.environ, "DASK_CONFIG": str(folder), "DASK_ROOT_CONFIG": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, env=environment)


@pytest.fixture
def folder(tmp_path):
    """Return a folder for DASK_CONFIG."""
    settings = yaml.safe_load((DEPLOY / "tls/dask.yaml").read_text(encoding="utf-8"))
    (tmp_path / "dask.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path


def test_jobs_are_scripts_that_offer_slots_over_tls(folder):
    """Each worker has a bash script: actors with a thread for each slot, a learner alone with its cores and its GPU."""
    shown = show(folder, "--actor-jobs", "2", "--actor-places", "16", "--learner-gres", "gpu:1", "--queue", "long")
    assert shown.returncode == 0, shown.stderr
    scripts = shown.stdout.split("#!/usr/bin/env bash")[1:]
    assert len(scripts) == 3
    for script in scripts:
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        assert "#SBATCH -p long" in script
        assert f"export DASK_CONFIG='{folder}'" in script
        assert "--protocol tls://" in script
        assert "--tls-key /etc/dask/tls/key.pem" in script
    *actors, learner = scripts
    for script in actors:
        assert "#SBATCH --cpus-per-task=16" in script
        assert "--nthreads 16 " in script
        assert "--resources actor=16" in script
        assert "gres" not in script
    assert "--nthreads 1 " in learner
    assert "--resources learner=1" in learner
    assert "#SBATCH --cpus-per-task=4" in learner
    assert "#SBATCH --gres=gpu:1" in learner


def test_without_certificates_nothing_is_submitted(tmp_path):
    """Workers that anybody may send code to are refused, with what to do."""
    shown = show(tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "make_certificates.sh" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--actor-memory", "lots"), "'lots', expected an amount of memory"),
        (("--port", "99999"), "99999, expected 1 to 65535"),
        (("--actor-jobs", "x"), "'x', expected a whole number of 1 or more"),
    ],
)
def test_a_mistake_is_one_line(folder, arguments, said):
    """Before a scheduler starts or a job is submitted."""
    shown = show(folder, *arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert said in shown.stderr.splitlines()[-1]


def test_without_slurm_nothing_is_started(folder, monkeypatch):
    """The commands that submit and cancel jobs are looked for first."""
    monkeypatch.setenv("PATH", str(folder))
    command = [sys.executable, DEPLOY / "slurm/workers.py"]
    environment = {**os.environ, "DASK_CONFIG": str(folder), "DASK_ROOT_CONFIG": str(folder)}
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, env=environment)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.splitlines()[-1].startswith("no sbatch and no scancel on PATH")
