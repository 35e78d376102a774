"""Points of a sweep: the run of a point has the values that its row shows, and can be made."""

import pytest

from penstock.flows.sweeps.points import check_points, grid_points
from penstock.storage.errors import ConfigError, RunNotFoundError

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


def test_points_whose_algorithm_does_not_fit_are_refused(tmp_path):
    """The first algorithm fits the environment and the policy, and another one does not."""
    pendulum = small_config(
        tmp_path, environment={"id": "Pendulum-v1", "num_envs": 8, "envs_per_tile": 4}, algorithm={}
    )
    with pytest.raises(ConfigError, match=r"algorithm\.name = 'dqn': it needs discrete actions"):
        check_points(grid_points("mine", {"algorithm.name": ["ppo", "dqn"]}, pendulum))


def test_a_setting_is_not_varied_beside_its_table(tmp_path):
    """The row of a run would show another table than the run has."""
    grid = {"environment.settings": [{"gravity": 9.0}], "environment.settings.gravity": [8.0]}
    with pytest.raises(ConfigError, match=r"environment\.settings is the table of environment\.settings\.gravity"):
        grid_points("mine", grid, small_config(tmp_path))
    with pytest.raises(ConfigError, match="continues can't be varied"):
        grid_points("mine", {"continues": ["a"]}, small_config(tmp_path))


def test_a_missing_run_to_take_parameters_from_is_refused(tmp_path):
    """Before the sweep's name is used up by runs that can't begin."""
    with pytest.raises(RunNotFoundError, match="'nobody'"):
        check_points(grid_points("mine", {"init_from.run": ["nobody"]}, small_config(tmp_path)))
