"""A run is resolved once before it starts: settings, store and policy are checked, and the result is passed on."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.storage import system
from penstock.storage.errors import ConfigError, LeaseHeldError, RunExistsError
from penstock.storage.runs.lease import LEASE, Lease
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.resolve import already_resolved, resolve


def test_resolved_run_has_policy_store_and_state(tmp_path: Path):
    """A new run has no stage; the policy is None until it is chosen."""
    config = build_config({"store": str(tmp_path), "name": "mine"})
    found = resolve(config, "refuse")
    assert (found.exists, found.newest_stage, found.run.name, found.root.url) == (False, None, "mine", str(tmp_path))
    assert found.policy is not None
    assert found.policy.role_of("act").replicas == 1
    auto = build_config({"store": str(tmp_path), "name": "mine", "distribution": {"policy": "auto"}})
    assert resolve(auto, "refuse").policy is None


def test_a_name_that_another_command_is_making_is_refused(tmp_path: Path):
    """Before anything starts; nobody is told to remove what a fork or a copy writes at this moment."""
    config = build_config({"store": str(tmp_path), "name": "mine"})
    store = resolve(config, "refuse").run.store
    store.write("commits/00000000.json", [b"{}"])
    with pytest.raises(ConfigError, match="a fork, copy or import was interrupted"):
        resolve(config, "refuse")
    parent = os.getppid()
    start = system.process_start(parent)
    assert start
    lease = replace(Lease.of_this_process("a fork", 30.0), pid=parent, process_start=start)
    store.write(LEASE, [lease.encode()])
    with pytest.raises(LeaseHeldError, match="driven by a fork"):
        resolve(config, "refuse")


def test_a_run_is_no_store(tmp_path: Path):
    """A run in another one's folder would be taken for its objects."""
    resolve(build_config({"store": str(tmp_path), "name": "mine"}), "refuse").run.create({"config": {}})
    with pytest.raises(ConfigError, match="mine' is the folder of a run, expected one that holds runs"):
        resolve(build_config({"store": str(tmp_path / "mine"), "name": "inner"}), "refuse")


def test_a_resolved_run_is_checked_once(tmp_path: Path):
    """A flow with the same settings, and perhaps a name, reuses the command's result; a later try does not."""
    config = build_config({"store": str(tmp_path)})
    resolved = resolve(config, "refuse")
    named = config.model_copy(update={"name": "mine"})
    with already_resolved(resolved):
        resolved.with_config(named).run.create({"config": {}})
        assert not resolve(named, "refuse").exists
        with pytest.raises(RunExistsError):
            resolve(named, "refuse")


def test_other_settings_are_resolved_anew(tmp_path: Path):
    """A retry of a flow run resumes, and other settings are another run: neither reuses the first result."""
    config = build_config({"store": str(tmp_path), "name": "mine"})
    resolved = resolve(config, "refuse")
    resolved.run.create({"config": {}})
    with already_resolved(resolved):
        assert resolve(config, "resume").exists
    with already_resolved(resolved), pytest.raises(RunExistsError):
        resolve(config.model_copy(update={"seed": 5}), "refuse")
