"""Progress of a point is that of its own run until its own end."""

import pytest

from penstock.flows.sweeps.points import make_point
from penstock.flows.sweeps.progress import Progress
from penstock.storage.errors import ConfigError
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.continuing.extensions import Extension, store_extension
from penstock.tasks.setup.config.loading import build_config

from ...support.stored.stored_points import small_config, store_run

RATE = "algorithm.learning_rate"


def point_of(store, rate):
    return make_point("tpe", small_config(store), {RATE: rate}, "tpe-0000")


def stored_with(store, rate, returns, **options):
    config = small_config(store)
    algorithm = config.algorithm.model_copy(update={"learning_rate": rate})
    return store_run(config.model_copy(update={"algorithm": algorithm}), "tpe-0000", returns, **options)


def test_stages_that_were_asked_for_later_do_not_count(tmp_path):
    """A search that goes on judges the trial as it did, and does not train the rest of an extension."""
    run = stored_with(tmp_path, 0.5, [10.0, 70.0, 60.0])
    before = Progress(point_of(tmp_path, 0.5))
    assert before.update()
    last = run.log.newest()
    assert last is not None
    store_extension(run.store, Extension(last.stage, commit_ref(last).digest, 9, None))
    run.log.append(build_next(last))
    after = Progress(point_of(tmp_path, 0.5))
    assert after.update()
    assert not before.update()
    assert (after.score(), after.stages, after.is_finished) == (before.score(), 3, True) == (60.0, 3, True)


def build_next(last):
    evaluation = {**last.evaluation, "mean_return": 500.0}
    parent, stage = commit_ref(last).digest, last.stage + 1
    rounds = (4 * stage, 4 * stage + 3)
    changes = {"stage": stage, "parent": parent, "rounds": rounds, "version": last.version + 4, "finished": None}
    return type(last)(**{**{name: getattr(last, name) for name in last.__slots__}, **changes, "evaluation": evaluation})


@pytest.mark.parametrize("returns", [[], [10.0, 70.0]])
def test_a_run_with_other_values_is_no_trial(tmp_path, returns):
    """Its return would be told as that of values which it never had; whether it was trained yet or not."""
    stored_with(tmp_path, 0.01, returns, finished=False)
    with pytest.raises(
        ConfigError, match=r"'tpe-0000' is there already, with algorithm\.learning_rate = 0\.01, .* 0\.5"
    ):
        Progress(point_of(tmp_path, 0.5)).update()
    assert Progress(point_of(tmp_path, 0.01)).update() == bool(returns)


def test_a_run_of_another_algorithm_is_no_trial(tmp_path):
    """It may lack the setting."""
    config = build_config({"store": str(tmp_path), "algorithm": {"name": "dqn"}})
    store_run(config, "tpe-0000", [1.0])
    point = make_point("tpe", small_config(tmp_path), {"algorithm.epochs": 2}, "tpe-0000")
    with pytest.raises(ConfigError, match=r"with algorithm\.epochs = None, and this sweep's has 2"):
        Progress(point).update()


def test_tables_and_numbers_compare_as_they_are_stored(tmp_path):
    """A whole number for one with a fraction, a list for a tuple, and an environment's settings in whatever form."""
    values = {RATE: 1, "algorithm.hidden": [8], "seed": 0, "environment.settings": {"gravity": 3.7}}
    point = make_point("tpe", small_config(tmp_path), values, "tpe-0000")
    assert not Progress(point).update()
    store_run(build_config(point.config.model_dump(mode="json")), "tpe-0000", [1.0])
    assert Progress(point).update()
