"""The fingerprint names what bytes depend on besides the configuration, and every change of it."""

from importlib.metadata import version

import pytest

from penstock.storage.digest import canonical_json
from penstock.tasks.runtime.fingerprint import differences, environment_packages, fingerprint, packages_again
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.replay import build_replay_config


def test_a_fingerprint_is_plain_and_stable():
    """It goes into `run.json`, and taken twice in one place it is the same."""
    found = fingerprint()
    assert found == fingerprint()
    assert found["torch"] == version("torch")
    assert found["penstock"] == version("penstock-rl")
    assert canonical_json(found)
    assert differences(found, fingerprint()) == []


def test_every_change_is_named():
    """Changed, gone and new, in one order always."""
    before = {"torch": "2.12.0", "numpy": "2.2.0", "gone": "1"}
    now = {"torch": "2.13.0", "numpy": "2.2.0", "new": "3"}
    assert differences(before, now) == ["gone 1 -> none", "new none -> 3", "torch 2.12.0 -> 2.13.0"]


@pytest.mark.parametrize(
    ("environment", "packages"),
    [
        ({"id": "CartPole-v1"}, ()),
        ({"id": "Floorplan-v0"}, ()),
        ({"id": "socket/Any-v0"}, ()),
        ({"id": "InvertedPendulum-v5"}, ("gymnasium", "mujoco")),
        ({"id": "dmc/cheetah-run"}, ("dm-control", "mujoco")),
        ({"id": "FrozenLake-v1"}, ("gymnasium",)),
        ({"id": "gymnasium/InvertedPendulum-v5"}, ("gymnasium", "mujoco")),
        ({"id": "gymnasium/CartPole-v1", "wrappers": ["pytest:Wrapper", "my_module:Wrapper"]}, ("gymnasium", "pytest")),
        ({"id": "my_module:Mine-v0"}, ("gymnasium",)),
    ],
)
def test_packages_that_step_or_model_an_environment_are_named(environment, packages):
    """A model is a file of its package; what Penstock steps alone, and a module of the user's, have no version."""
    found = environment_packages(build_config({"environment": environment}))
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    assert found == ({"environment": versions} if packages else {})


def test_a_replay_steps_no_environment():
    """So no package of one matters to its bytes."""
    config = build_replay_config({"source": {"runs": ["one"]}, "environment": {"id": "FrozenLake-v1"}})
    assert environment_packages(config) == {}


def test_stored_packages_are_compared_with_those_that_are_installed():
    """Runs that were created before have none, and are not warned about; one that is gone is a difference."""
    assert packages_again({"torch": "2.13.0"}) == {}
    stored = {"environment": f"gone 1.0, gymnasium 0.1, mujoco {version('mujoco')}"}
    now = packages_again(stored)
    assert now == {"environment": f"gone none, gymnasium {version('gymnasium')}, mujoco {version('mujoco')}"}
    assert differences(stored, now) == [f"environment {stored['environment']} -> {now['environment']}"]


def test_packages_of_an_unknown_id_are_those_that_were_stored():
    """A wrapper's module may register it: a process that has not imported that knows no package, and says nothing."""
    unknown = build_config({"environment": {"id": "gymnasium/Unregistered-v0"}})
    stored = {"environment": f"gymnasium {version('gymnasium')}"}
    assert environment_packages(unknown) != stored
    assert differences(stored, packages_again(stored)) == []
