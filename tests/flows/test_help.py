"""Help on a terminal of 80 columns."""

import pytest
import typer
from typer.testing import CliRunner

from penstock.flows.cli.main import app

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def help_of(*command: str) -> list[str]:
    result = CliRunner().invoke(app, [*command, "--help"], terminal_width=80)
    assert result.exit_code == 0
    return result.output.splitlines()


def test_no_description_in_the_list_of_commands_is_cut():
    """Each command's first sentence fits in its line."""
    lines = help_of()
    listed = lines[lines.index("Commands:") + 1 :]
    assert len(listed) >= len(COMMANDS) - 1  # one old name is hidden
    assert not [line for line in listed if line.endswith("...")]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_in_80_columns(command):
    """No line is longer."""
    assert [line for line in help_of(command) if len(line) > 80] == []
