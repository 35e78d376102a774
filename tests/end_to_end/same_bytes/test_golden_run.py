"""A run that version 0.1.0 left unfinished resumes under today's code, with the real command, Prefect and Dask."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.digest import canonical_json, digest
from penstock.storage.tensors import load_tensors

if TYPE_CHECKING:
    from ..conftest import Bench

GOLDEN = Path(__file__).parents[2] / "golden" / "run"


def test_a_run_of_the_version_before_resumes(bench: Bench):
    """Its commits stay as they are, its settings hold, and each new commit is built upon the one before.

    Its settings are stored as `placement.*`, the names of 0.1.0.
    """
    folder = Path(bench.store) / "golden"
    shutil.copytree(GOLDEN, folder)
    before = {name: (folder / name).read_bytes() for name in names(folder) if is_history(name)}
    assert "placement" in json.loads((folder / "run.json").read_bytes())["config"]

    flow, run = bench.resume("golden"), bench.run("golden")
    run.wait_for_commit(3, flow)  # its `max_stages` is far away
    flow.kill()

    assert {name: (folder / name).read_bytes() for name in before} == before
    commits = [read(folder / f"commits/{stage:08d}.json") for stage in range(4)]
    assert run.folder.log.verify(run.folder.genesis()) >= 4
    assert commits[2]["parent"] == digest((folder / "commits/00000001.json").read_bytes())
    assert [commit["rounds"] for commit in commits] == [[0, 2], [3, 5], [6, 8], [9, 11]]
    assert [commit["env_steps"] for commit in commits] == [192, 384, 576, 768]
    assert commits[3]["finished"] is None
    assert not (folder / "attempts").exists()

    # The settings that it began with: two tiles of two environments, rounds of 16 steps, snapshots of fewer bits.
    assert [(ref["round"], ref["tile"], ref["rows"]) for ref in commits[2]["shards"]] == [
        (round_, tile, 32) for round_ in (6, 7, 8) for tile in (0, 1)
    ]
    for ref in commits[3]["snapshots"]:
        _, facts = load_tensors(memoryview((folder / ref["name"]).read_bytes()), ref["name"], ref["digest"])
        assert facts == {"dtype": "bfloat16", "version": ref["version"]}
    timings = read(folder / "timings/00000002-00000002.json")
    assert timings["stage"] == 2


@pytest.mark.slow
def test_a_stored_algorithm_with_former_imports_is_refused_by_name(bench: Bench):
    """A run of 0.1.0 whose custom algorithm imports `tasks`: the error names `penstock.tasks`, and what to import."""
    folder, modules = Path(bench.store) / "golden", bench.folder / "modules"
    modules.mkdir()
    (modules / "former.py").write_text("from tasks.algorithm import Algorithm\n\n\nclass Mine(Algorithm): ...\n")
    description = read(GOLDEN / "run.json")
    description["config"]["algorithm"] = description["identity"]["algorithm"] = {"name": "former:Mine"}
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(canonical_json(description) + b"\n")

    where = ("--store", bench.store, "--scheduler", bench.scheduler)
    refused = bench.penstock("resume", "golden", *where, PYTHONPATH=str(modules))
    refused.refuse("former:Mine", "imported as penstock.tasks", "from penstock import Algorithm")


def names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def is_history(name: str) -> bool:
    """The lease and the hint of the newest commit change; older states and snapshots may be removed."""
    return name.split("/", maxsplit=1)[0] in {"commits", "shards", "checkpoints", "timings", "evaluations", "run.json"}


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())
