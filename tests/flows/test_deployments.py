"""What `deploy/prefect.yaml` offers in Prefect's UI can be started."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

import flows

ROOT = Path(flows.__path__[0]).parent
DEPLOYMENTS = {each["name"]: each for each in yaml.safe_load((ROOT / "deploy/prefect.yaml").read_text())["deployments"]}
ASKED_FOR = {"train": {}, "evaluate": {"run": "nightly-1"}}
"""What has to be said where a flow run is started."""


@pytest.mark.parametrize("name", sorted(ASKED_FOR.keys() | DEPLOYMENTS.keys()))
def test_a_deployment_starts_its_flow(name):
    """Its entrypoint is a flow that takes its parameters, with what is asked for."""
    deployment = DEPLOYMENTS[name]
    path, function = deployment["entrypoint"].split(":")
    flow = load_flow_from_entrypoint(f"{ROOT / path}:{function}")
    flow.validate_parameters({**deployment["parameters"], **ASKED_FOR[name]})
    assert deployment["work_pool"]["name"] == "penstock"
