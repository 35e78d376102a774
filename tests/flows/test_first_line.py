"""A command says what it does before the slow packages are imported."""

import pytest

from ..support.processes.first_line import first_line

SLOW = {"torch", "prefect", "distributed"}
COMMANDS = [
    "train cartpole",
    "evaluate c1",
    "export c1 policy.onnx --to onnx",
    "report c1",
]
MORE = [
    "check-algorithm ppo",
    "check-env CartPole-v1",
    "copy c1 other",
    "export c1 data",
    "fork c1 c2 --from-stage 1",
    "gc c1 --dry-run",
    "import data --name c2",
    "plan",
    "replay r1 --from c1",
    "resume c1",
    "runs",
    "serve",
    "serve-policy c1",
    "settings",
    "show c1",
    "simulate",
    "ui",
    "verify c1",
]


@pytest.mark.parametrize("command", [*COMMANDS, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)])
def test_a_commands_first_line_needs_no_slow_import(tmp_path, command):
    """Neither torch nor Prefect nor Dask is imported before it, whether it announces the work or refuses it."""
    found = first_line(command.split(), tmp_path, {"PREFECT_HOME": str(tmp_path / "home"), "DO_NOT_TRACK": "1"})
    assert found.line
    assert not SLOW & found.modules, found.line
