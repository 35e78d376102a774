"""Trackers are made from settings; a user's mistake is refused before anything starts."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from penstock.flows.observers.tracking import open as open_module
from penstock.flows.observers.tracking.mlflow import MlflowTracker
from penstock.flows.observers.tracking.open import check_followers, open_followers
from penstock.flows.observers.tracking.outcome import OutcomeMaker
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.cluster import ClusterSettings
from penstock.tasks.setup.config.loading import build_config

if TYPE_CHECKING:
    from pathlib import Path

    from ....support.stored.committed_run import CommittedRun


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_trackers_are_made_once_each():
    """A tracker that is named twice would write everything twice."""
    found = open_followers(ClusterSettings(track=("tensorboard:a", "tensorboard:b", "tensorboard:a")))
    assert len(found) == 2


def test_two_names_of_one_place_are_one_tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A default and what it stands for, a folder with a slash, the address of the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000/")
    named = ("tensorboard", "tensorboard:tensorboard", "tensorboard:./tensorboard/", "mlflow")
    found = open_followers(ClusterSettings(track=(*named, "mlflow:http://127.0.0.1:5000")))
    assert [one.name for one in found] == ["tracker tensorboard", "tracker mlflow"]
    for one in found[1:]:
        one._client.close()


@pytest.mark.slow
def test_a_disabled_wandb_makes_no_record(monkeypatch: pytest.MonkeyPatch):
    """It has no files of which a resumed run could read what is lacking."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert open_followers(ClusterSettings(track=("wandb",))) == []


@pytest.mark.parametrize(
    ("tracker", "says"),
    [
        ("wandb", "found no key for Weights & Biases; type `wandb login`"),
        ("mlflow", "as mlflow:http://HOST:5000 or in MLFLOW_TRACKING_URI"),
        ("mlflow:./mlruns", "expected the address of an MLflow server"),
        ("tensorboard:s3://bucket/logs", "expected a folder of this machine"),
    ],
)
def test_what_is_missing_is_named(tracker: str, says: str):
    """The message says what to do."""
    with pytest.raises(ConfigError, match=says):
        check_followers(ClusterSettings(track=(tracker,)))


@pytest.mark.parametrize("tracker", ["aim", "tensorboard:", ""])
def test_an_unknown_tracker_is_refused_with_the_settings(tracker: str):
    """The message lists those that there are."""
    with pytest.raises(ConfigError, match=r"cluster.track: .*expected tensorboard\[:FOLDER\]"):
        build_config({"cluster": {"track": [tracker]}})


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_with_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Nothing is started before the user has installed it."""
    monkeypatch.setattr(open_module, "find_spec", lambda name: None if name else importlib.util.find_spec(name))
    with pytest.raises(ConfigError, match=rf"tracker {kind} needs a package: pip install 'penstock-rl\[{kind}\]'"):
        check_followers(ClusterSettings(track=(kind,)))


def test_a_key_of_wandb_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """It is found where `wandb login` writes it, and offline none is needed."""
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password key\n")
    check_followers(ClusterSettings(track=("wandb",)))
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_followers(ClusterSettings(track=("wandb",)))


def test_a_server_that_is_not_there_is_one_warning(run: CommittedRun, drive, caplog):
    """Training continues, and the same failure is not said again for each stage."""
    drive(MlflowTracker("mlflow", OutcomeMaker(60.0), "http://127.0.0.1:9"), 1.0, 2.0, 3.0)
    assert len(run.committed) == 3
    said = [record.getMessage() for record in caplog.records if "on_stage" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("tracker mlflow failed in on_stage: ConnectError")


def test_a_package_that_can_not_be_imported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """It is installed, and lacks another one."""
    (tmp_path / "broken_tracker.py").write_text("import a_package_that_is_not_there")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(open_module._MODULES, "tensorboard", "broken_tracker")
    with pytest.raises(ConfigError, match=r"importing broken_tracker failed: ModuleNotFoundError.*rl\[tensorboard\]"):
        check_followers(ClusterSettings(track=("tensorboard:logs",)))


def test_a_tracker_of_ones_own_needs_no_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As docs/tracking.md has it: the four methods, named as a callback."""
    (tmp_path / "own_tracker.py").write_text(
        "from penstock.flows.observers.tracking.tracker import Tracker\n"
        "class Mine(Tracker):\n"
        "    def open(self, start): return 0\n"
        "    def add(self, record): pass\n"
        "    def add_outcome(self, outcome): pass\n"
        "    def close(self, end): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tracker,) = open_followers(ClusterSettings(callbacks=("own_tracker:Mine",)))
    assert tracker.name == "tracker Mine"
    assert isinstance(tracker._outcomes, OutcomeMaker)


def test_an_address_with_a_password_is_refused_without_showing_it():
    """Prefect would store it with the flow run's parameters."""
    with pytest.raises(ConfigError, match=r"a user or a password in it.*MLFLOW_TRACKING_PASSWORD") as caught:
        build_config({"cluster": {"track": ["mlflow:http://ada:sekret@127.0.0.1:9"]}})
    assert "sekret" not in str(caught.value)
