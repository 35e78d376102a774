"""Where learning without stragglers is refused, and how many shards a round needs."""

from __future__ import annotations

import pytest

from storage.errors import ConfigError
from tasks.config import build_config, merge
from tasks.replay_config import build_replay_config
from tasks.start import check_placement
from tasks.training import describe_run

FOUR_TILES = {
    "environment": {"num_envs": 8, "envs_per_tile": 2},
    "placement": {"act_tasks": 4, "quorum": 0.75},
}


def test_four_tiles_in_four_tasks_may_miss_one():
    """And what is not promised then is said in `run.json`, with the reason."""
    config = build_config(FOUR_TILES)
    check_placement(config)
    assert config.shards_needed == 3
    promise = describe_run(config)["promise"]
    assert promise["same_bytes"] is False
    assert "quorum 0.75" in promise["because"]
    assert "stored choices" in promise["because"]


@pytest.mark.parametrize(("quorum", "tiles", "needed"), [(0.1, 30, 3), (0.7, 10, 7), (0.34, 3, 2), (0.01, 4, 1)])
def test_a_quorum_counts_whole_shards(quorum, tiles, needed):
    """Rounded up, as numbers are and not as their floats are; never none."""
    values = {"environment": {"num_envs": tiles, "envs_per_tile": 1}, "placement": {"quorum": quorum}}
    assert build_config(values).shards_needed == needed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"placement": {"policy": "multiple_learners", "act_tasks": 1, "learn_tasks": 2}}, "wait for each other"),
        ({"placement": {"policy": "central", "act_tasks": 1}}, "wait for each other"),
        ({"placement": {"policy": "single_learner_fine", "act_tasks": 1, "env_tasks": 4}}, "wait for each other"),
        ({"placement": {"act_tasks": 2}}, "2 act tasks share 4 tiles.*act_tasks = 4"),
        ({"placement": {"quorum": 0.9}}, "that is all"),
        ({"algorithm": {"name": "dqn"}}, "'dqn' learns from a window"),
    ],
)
def test_it_is_refused_where_a_round_needs_all(changes, said):
    """With the setting, why, and what would be right."""
    with pytest.raises(ConfigError, match=rf"^placement.quorum = 0\.\d+: .*{said}"):
        check_placement(build_config(merge(FOUR_TILES, changes)))


def test_a_replay_waits_for_nobody():
    """Its shards are all stored."""
    config = build_replay_config(
        {"source": {"runs": ["one"]}, "placement": {"policy": "learner_over_storage", "quorum": 0.5}}
    )
    with pytest.raises(ConfigError, match="a replay reads what is stored"):
        check_placement(config)


def test_minibatches_fit_into_the_smallest_round():
    """Two of four tiles are 12 rows: a thirteenth minibatch would be empty."""
    values = {
        "environment": {"num_envs": 8, "envs_per_tile": 2},
        "schedule": {"round_steps": 3},
        "placement": {"quorum": 0.5},
    }
    assert build_config(merge(values, {"algorithm": {"minibatches": 12}})).shards_needed == 2
    with pytest.raises(ConfigError, match=r"minibatches = 13, but a round has only 12 rows"):
        build_config(merge(values, {"algorithm": {"minibatches": 13}}))
