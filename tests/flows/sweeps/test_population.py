"""A population refuses what can't be copied before anything starts; end_to_end/operation/test_sweeps.py trains some."""

import pytest

from penstock.flows.sweeps.population import plan_population
from penstock.flows.sweeps.space import Range
from penstock.storage.errors import ConfigError

from ...support.stored.stored_points import small_config

RATES = {"learning_rate": Range(low=0.001, high=0.1, log=True)}


def plan(config, space, **changed):
    given = {"population_size": 4, "interval_stages": 1, "replaced_share": 0.25, "seed": 1, **changed}
    return plan_population("pbt", space, config, **given)


def test_first_individuals_follow_from_the_seed(tmp_path):
    """Each has its own values and its own run."""
    config = small_config(tmp_path)
    first = plan(config, RATES).first
    assert [point.values for point in first] == [point.values for point in plan(config, RATES).first]
    assert (
        len({point.values["algorithm.learning_rate"] for point in first}) == len({point.name for point in first}) == 4
    )
    assert plan(config, {"reward_scale": Range(low=1, high=2)}).space["algorithm.reward_scale"].low == 1.0
    listed = plan(config, {"entropy_weight": [0, 0.003, 1]}).space["algorithm.entropy_weight"]
    assert list(map(repr, listed)) == ["0.0", "0.003", "1.0"]


@pytest.mark.parametrize(
    ("space", "schedule", "changed", "mentioned"),
    [
        ({"hidden": [[8], [16]]}, {}, {}, "can't change while a run is trained"),
        ({"epochs": [1, 2]}, {}, {}, "algorithm.epochs"),
        ({"epochs": Range(low=1, high=9)}, {}, {}, "algorithm.epochs can't change while a run is trained"),
        ({"initial_log_std": [0.0, -1.0]}, {}, {}, "initial_log_std counts at a run's start alone"),
        ({"schedule.target_return": [1.0]}, {}, {}, "schedule.target_return"),
        ({"discount": Range(low=0.9, high=1.5)}, {}, {}, "algorithm.discount = 1.5"),
        ({"discount": [0.9, 1.5]}, {}, {}, "algorithm.discount = 1.5"),
        ({"target_kl": [0.0, 0.02]}, {}, {}, "target_kl = 0.0 and 0.02: a run can't switch it on or off"),
        (RATES, {"target_return": 100.0}, {}, "target_return = 100"),
        (RATES, {"stop_patience_evaluations": 3}, {}, "stop_patience_evaluations = 3"),
        (RATES, {}, {"interval_stages": 4}, "none would ever be copied"),
        (RATES, {"evaluate_every_stages": 2}, {}, "first evaluated after 2"),
    ],
)
def test_what_can_not_be_copied_is_refused(space, schedule, changed, mentioned, tmp_path):
    """The message names the setting and what to do."""
    config = small_config(tmp_path)
    config = config.model_copy(update={"schedule": config.schedule.model_copy(update=schedule)})
    with pytest.raises(ConfigError, match=mentioned):
        plan(config, space, **changed)


def test_an_exponent_that_is_stored_in_priorities_is_not_varied(tmp_path):
    """A copy would draw by priorities of another exponent."""
    config = small_config(tmp_path, algorithm={"name": "dqn", "hidden": [8], "priority_exponent": 0.5})
    with pytest.raises(ConfigError, match="priority_exponent can't change while a run is trained"):
        plan(config, {"priority_exponent": [0.5, 0.6]})


def test_a_whole_number_is_not_varied_however_large_its_range_is(tmp_path):
    """Large numbers are rounded to whole ones, which a window's size would take."""
    config = small_config(tmp_path, algorithm={"name": "dqn", "hidden": [8]})
    with pytest.raises(ConfigError, match="window_rows can't change while a run is trained"):
        plan(config, {"window_rows": Range(low=1_000_000, high=5_000_000)})
