"""Every command of `penstock` has its mistakes, which the packaging tests try."""

import typer.main

from penstock.flows.cli.main import app

from ...packaging.test_first_use import WRONG


def test_every_command_is_tried_with_mistakes():
    """A new command needs an entry in tests/packaging/test_first_use.py."""
    commands = typer.main.get_group(app).commands
    assert {name for name, command in commands.items() if not command.hidden} == WRONG.keys()
