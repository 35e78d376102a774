"""Episodes that are written as a run: from datasets of strangers, and by a process that stood still meanwhile."""

import json
from pathlib import Path

import pytest

from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError, CorruptObjectError, LeaseLostError
from penstock.storage.refs import ShardRef, shard_name
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.data.datasets.minari import import_dataset
from penstock.tasks.data.datasets.stored_episodes import commit_episodes

DESCRIPTION = {"config": {"imported": {}}, "identity": {"imported": "one"}}


@pytest.mark.parametrize("lacking", ["observation_space", "action_space"])
def test_a_dataset_names_no_function_to_call(tmp_path: Path, lacking: str):
    """Without a space Minari makes the environment that the dataset names, whose entry point is any function."""
    pytest.importorskip("minari")
    (data := tmp_path / "dataset" / "data").mkdir(parents=True)
    called = tmp_path / "called"
    entry = {"id": "Any-v0", "entry_point": "os:mkdir", "kwargs": {"path": str(called)}}
    space = json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 2})
    facts = {"dataset_id": "any-v0", "env_spec": json.dumps(entry), "data_format": "hdf5", "total_episodes": 1}
    facts |= {name: space for name in ("observation_space", "action_space") if name != lacking}
    (data / "metadata.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match=rf"has no {lacking}.*any code"):
        import_dataset(RunFolder(open_store(tmp_path / "runs"), "imported"), data.parent)
    assert not called.exists()


def test_a_process_that_lost_the_lease_commits_nothing(tmp_path: Path):
    """It stood still meanwhile, and another one may have begun to write the run."""
    run = RunFolder(open_store(tmp_path), "imported")

    def lost() -> None:
        raise LeaseLostError("it stood still")

    with pytest.raises(LeaseLostError):
        commit_episodes(run, DESCRIPTION, [], 0, "imported", lost)
    assert not run.exists()
    assert run.log.newest() is None


def test_a_commit_belongs_to_the_run_that_was_written(tmp_path: Path):
    """If another command made a run of that name meanwhile, its readers see that the commit is none of its own."""
    run = RunFolder(open_store(tmp_path), "imported")
    run.create({**DESCRIPTION, "identity": {"imported": "another"}})
    content = digest(b"rows")
    ref = ShardRef(shard_name(0, 0, 0, 0, content), content, nbytes=4, round=0, tile=0, rows=1)
    run.store.write(ref.name, [b"rows"])
    commit_episodes(run, DESCRIPTION, [ref], 1, "imported", lambda: None)
    with pytest.raises(CorruptObjectError):
        run.log.check_genesis(run.genesis())
