"""Settings given in Python are those of the command, and a user's mistakes are refused before anything starts."""

import threading
from pathlib import Path

import pytest

import penstock
from penstock.flows.api.surroundings import only_driver
from penstock.flows.api.training import _configured
from penstock.flows.settings.options import configured
from penstock.storage.errors import RunNotFoundError

GOLDEN = Path(__file__).parents[2] / "golden" / "run"


def test_settings_are_those_of_the_command(tmp_path):
    """By last part, by full name and by table; over a preset, a file, a table, or the settings of a run."""
    options = ["--lag", "1", "--algorithm.hidden", "[8, 4]", "--num-envs", "64", "--max-stages", "3"]
    expected = configured("cartpole", options, {"store": str(tmp_path)})
    given = {
        "lag": 1,
        "algorithm": {"hidden": [8, 4]},
        "environment.num_envs": 64,
        "schedule": {"max_stages": 3},
        "store": tmp_path,
    }
    assert _configured("cartpole", given) == expected
    assert _configured(expected, {}) == expected
    assert _configured(expected, {"lag": 0}).schedule.lag == 0
    file = tmp_path / "mine.toml"
    file.write_text("seed = 4\n[schedule]\nlag = 1\n")
    assert _configured(file, {"seed": 5}) == _configured({"schedule": {"lag": 1}}, {"seed": 5})
    assert _configured("cartpole", {"algorithm": {"name": "dqn"}}).algorithm.name == "dqn"


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ("cartpol", {}, "no preset 'cartpol'; there are: acrobot"),
        ("cartpole", {"max_stagez": 3}, r"^max_stagez: no such setting; did you mean max_stages"),
        ("cartpole", {"name": "Bad Name"}, "name = 'Bad Name'"),
        ("cartpole", {"algorithm": "sac"}, "algorithm = 'sac': expected a table of its settings"),
        ("cartpole", {"algorithm": {"nope": 1}}, "algorithm.nope: no such setting"),
        ("cartpole", {"lag": "fast"}, "schedule.lag = 'fast'"),
        ({"schedule": 3}, {}, "schedule = 3"),
        (5, {}, "the first argument is 5, expected a preset's name"),
        (None, {}, "the first argument is None"),
        ("cartpole", {"device": "cuda:99"}, "device"),
        ("cartpole", {"track": ["mlflow"]}, "^tracker mlflow: expected the address of an MLflow server, as mlflow:"),
        ("cartpole", {"cluster": {"callbacks": ["nowhere:X"]}}, "^callback nowhere:X: .*No module named 'nowhere'; it"),
        (
            "cartpole",
            {"init_from": {"run": "c1", "version": "x"}},
            "^init_from.version = 'x': expected 'newest', [^\n]*$",
        ),
    ],
    ids=str,
)
def test_mistakes_are_refused(config, settings, message, tmp_path):
    """The message has Python's spelling, and the store stays empty."""
    with pytest.raises(penstock.ConfigError, match=message):
        penstock.train(config, **{"store": tmp_path, **settings})
    assert list(tmp_path.iterdir()) == []


def test_one_run_at_a_time(tmp_path):
    """A second run in the same process would share the first one's panel and environment: it is refused."""
    said: list[BaseException] = []

    def second() -> None:
        try:
            penstock.train(store=tmp_path)
        except penstock.ConfigError as error:
            said.append(error)

    with only_driver():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert "this process drives another run" in str(said[0])


def test_what_may_not_change_is_refused():
    """Resuming takes settings of the cluster and numbers of tasks alone."""
    with pytest.raises(penstock.ConfigError, match=r"seed: can't change when a run is resumed.*penstock fork"):
        penstock.resume(GOLDEN, seed=3)
    with pytest.raises(penstock.ConfigError, match=r"schedule\.max_stages: can't change.*penstock extend"):
        penstock.resume(GOLDEN, max_stages=3)
    with pytest.raises(penstock.ConfigError, match=r"distribution\.learn_tasks: can't change"):
        penstock.resume(GOLDEN, learn_tasks=2)
    with pytest.raises(RunNotFoundError, match="there is no run 'absent'"):
        penstock.resume("absent", store=GOLDEN.parent)
