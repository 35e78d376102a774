"""A mistake in a flow run's parameters is its lines on the terminal of `penstock serve`, and has no traceback there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ...support.processes.commands import wait_until
from .test_stopped_serving import Serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "said"),
    [
        ("resume.resume", {"run": "nobody"}, "there is no run 'nobody' in "),
        ("train.train", {"config": {"environment": {"num_envs": 32, "envs_per_tile": 31}}}, "is not a multiple of"),
    ],
    ids=["found by the flow", "found by Prefect"],
)
def test_a_mistake_of_a_flow_run_is_printed_once(
    tmp_path: Path, entrypoint: str, parameters: dict[str, Any], said: str
):
    """The flow run fails, its page has the error, and one line of the terminal has it beside the line of its end."""
    described = [{"name": "wrong", "entrypoint": f"penstock.flows.{entrypoint}"}]
    (tmp_path / "deployments.yaml").write_text(yaml.safe_dump({"deployments": described}))
    with Serving(tmp_path, 1) as serving:
        others = set(serving.process.descendants())
        failed = serving.start(**parameters)
        serving.wait(failed, "FAILED")
        assert said in serving.ask(f"flow_runs/{failed}")["state"]["message"]
        # Its process reports the state first, and then prints why.
        wait_until(lambda: set(serving.process.descendants()) <= others, "the end of the flow run's process")
        serving.process.send(15)
        serving.process.wait()
        lines = serving.process.output.splitlines()
    assert "Traceback" not in serving.process.output
    assert len([line for line in lines if said in line and "Finished in state" not in line]) == 1
