"""Points of a sweep: the run of a point has the values that its row shows, and can be made."""

import pytest

from penstock.flows.sweeps.points import check_points, grid_points
from penstock.storage.errors import ConfigError

from ...support.stored.stored_points import small_config


def test_a_table_that_is_varied_is_the_whole_table(tmp_path):
    """It replaces the shared one: a row that shows `{}` has no setting of another row's run."""
    shared = {"id": "MountainCar-v0", "num_envs": 8, "envs_per_tile": 4, "settings": {"goal_velocity": 0.2}}
    config = small_config(tmp_path, environment=shared)
    values = [{"goal_velocity": 0.1}, {}]
    points = grid_points("mine", {"environment.settings": values}, config)
    assert [point.config.environment.settings for point in points] == values
    assert len({point.name for point in points}) == 2


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"environment.id": ["CartPole-v1", "NoSuch-v9"]}, "NoSuch-v9"),
        ({"distribution.policy": ["single_learner_coarse", "coarse"]}, "no such policy"),
        ({"algorithm.name": ["ppo"], "environment.id": ["simple_spread_v3"]}, "mappo"),
    ],
)
def test_points_whose_run_could_not_begin_are_refused(tmp_path, grid, said):
    """Before any other is trained; values that validation takes, and an environment or a policy does not."""
    with pytest.raises(ConfigError, match=said):
        check_points(grid_points("mine", grid, small_config(tmp_path)))
    check_points(grid_points("mine", {"seed": [1, 2], "distribution.policy": ["auto"]}, small_config(tmp_path)))
