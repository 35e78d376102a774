"""The window of an off-policy run: its shards are known before its next stage needs them."""

import pytest

from penstock.storage.errors import ConfigError
from penstock.storage.runs.reader_claims import keep_shards_from
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.data.input.window_stages import first_window_stage, require_shards, require_window
from penstock.tasks.driver.run import describe_run
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.replay import build_replay_config


def run_of(tmp_path, **algorithm) -> RunFolder:
    """A run of 64 rows a round and 2 rounds a stage."""
    config = build_config(
        {
            "name": "mine",
            "environment": {"num_envs": 8, "envs_per_tile": 8},
            "schedule": {"round_steps": 8, "rounds_per_stage": 2, "max_stages": 9},
            "algorithm": algorithm,
        }
    )
    run = RunFolder(open_store(str(tmp_path)), "mine")
    run.create(describe_run(config))
    return run


@pytest.mark.parametrize(("rounds", "first"), [(1, 4), (2, 4), (3, 3), (4, 3), (10, 0), (99, 0)])
def test_the_window_begins_with_whole_rounds_of_committed_stages(tmp_path, rounds, first):
    """Before stage 5 there are rounds 0 to 9; so many of them are in the window, and their stages have to stay."""
    run = run_of(tmp_path, name="dqn", window_rows=64 * rounds + 63, warm_up_rows=64)
    assert first_window_stage(run, 5) == first
    keep_shards_from(run.store, first)
    require_window(run, 5)
    require_window(run, 5, first)
    said = rf"draws rows of stages {first} to 4 in stage 5.*before stage {first} at most"
    with pytest.raises(ConfigError, match=said):
        require_window(run, 5, first + 1)
    keep_shards_from(run.store, first + 1)
    with pytest.raises(ConfigError, match=rf"before stage {first + 1} were dropped by `penstock gc"):
        require_window(run, 5)


def test_an_on_policy_run_needs_no_shards(tmp_path):
    """It learns each round once."""
    run = run_of(tmp_path)
    assert first_window_stage(run, 5) == 5
    require_window(run, 5, 5)


def test_a_replay_needs_the_shards_of_the_runs_that_it_reads(tmp_path):
    """An extension is never taken back, so it is refused before it is stored; so is a fork."""
    source = run_of(tmp_path)
    config = build_replay_config({"name": "cloned", "source": {"runs": ["mine"]}, "algorithm": {"name": "iql"}})
    replay = RunFolder(open_store(str(tmp_path)), "cloned")
    reads = {"sources": [{"run": "mine", "stages": [1, 4], "commit": "0" * 32}]}
    replay.create({**describe_run(config), "reads": reads})
    keep_shards_from(source.store, 1)
    require_shards(replay, 3)
    keep_shards_from(source.store, 2)
    with pytest.raises(ConfigError, match=r"stages 1 to 4 of run 'mine', and those before stage 2 were dropped"):
        require_shards(replay, 3)
    source.store.delete(["run.json"])
    with pytest.raises(ConfigError, match="run 'mine', which is not in"):
        require_shards(replay, 3)
