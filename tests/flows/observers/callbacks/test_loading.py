"""Callbacks that are named as `module:Name` are imported before a run starts, and mistakes are refused."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.flows.observers.callbacks.loading import found_callback, load_callbacks, made_callbacks
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import build_config

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
import penstock
class Mine(penstock.Callback):
    def on_stage(self, record):
        pass
class Misspelt(penstock.Callback):
    def on_stages(self, record):
        pass
class Waiting(penstock.Callback):
    async def on_stage(self, record):
        pass
class Demanding(Mine):
    def __init__(self, channel):
        pass
class Nothing:
    pass
made = Mine()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_callbacks.py").write_text(SOURCE)
    (tmp_path / "broken_callbacks.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    for name in ("my_callbacks", "broken_callbacks"):
        sys.modules.pop(name, None)


def test_a_class_is_made_and_an_object_is_taken():
    """Both are found in the working directory."""
    made, taken = load_callbacks(["my_callbacks:Mine", "my_callbacks:made"])
    assert isinstance(made, penstock.Callback)
    assert taken is sys.modules["my_callbacks"].made


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent_callbacks:Mine", "importing absent_callbacks failed: ModuleNotFoundError"),
        ("broken_callbacks:Mine", "no_such_package"),
        ("my_callbacks:Other", "has no 'Other'"),
        ("my_callbacks:Nothing", "it has none of on_run_start, on_stage, on_evaluation, on_run_end"),
        ("my_callbacks:Misspelt", "it has none of on_run_start, on_stage, on_evaluation, on_run_end"),
        ("my_callbacks:Waiting", "it has an `async` on_stage, which nothing awaits; expected plain methods"),
        ("my_callbacks:Demanding", "can't be made without arguments: missing a required"),
    ],
)
def test_mistakes_are_named(name: str, says: str):
    """The message has the name, the reason and the expectation."""
    with pytest.raises(ConfigError, match=says) as found:
        load_callbacks([name])
    assert str(found.value).startswith(f"callback {name}: ")


def test_a_class_that_needs_arguments_is_refused_before_it_is_made():
    """So a run's services do not start first."""
    with pytest.raises(ConfigError, match=r"Demanding.*such as `made = Demanding"):
        found_callback("my_callbacks:Demanding")


@pytest.mark.parametrize("name", ["my_callbacks", "my_callbacks:", "../x:Mine", "a b:C"])
def test_a_name_of_another_form_is_refused(name: str):
    """It is refused with the other settings."""
    with pytest.raises(ConfigError, match=r"cluster.callbacks: .*expected module:Name"):
        build_config({"cluster": {"callbacks": [name]}})


class Follower(penstock.Callback):
    """Follows stages, and keeps nothing."""

    def on_stage(self, record: penstock.StageRecord) -> None:
        """Do nothing with it."""


class Demanding(Follower):
    """Can't be made without knowing where to send."""

    def __init__(self, channel: str) -> None:
        self.channel = channel


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (5, "callbacks = 5: expected a list of callbacks"),
        (Follower(), "expected a list of callbacks"),
        ([5], "callbacks: 5 has none of on_run_start"),
        ([lambda _: None], "has none of on_run_start"),
        ([Demanding], "callbacks: Demanding can't be made without arguments: TypeError"),
    ],
)
def test_objects_that_are_no_callbacks_are_refused_before_a_run_starts(given: object, says: str, tmp_path: Path):
    """Nothing would call them, and nobody would see that."""
    with pytest.raises(ConfigError, match=says):
        penstock.train("cartpole", store=tmp_path, callbacks=given)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("cartpole*"))


def test_classes_are_made_as_named_ones_are():
    """An object is taken as it is."""
    follower = Follower()
    made, taken = made_callbacks([Follower, follower])
    assert isinstance(made, Follower)
    assert taken is follower
