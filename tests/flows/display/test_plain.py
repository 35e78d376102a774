"""Stored text on a terminal: it is printed and not obeyed."""

from io import StringIO

from rich.console import Console

from penstock.flows.display.console import print_table
from penstock.flows.display.plain import plain, show_warning

ESCAPES = "\x1b]52;c;aGk=\x07done\x1b[2J\x9b1m\r\x7f"


def test_control_characters_are_written_out():
    """Escape sequences would write the clipboard and hide lines; umlauts and emoji stay."""
    assert plain(f"ä 🙂\t{ESCAPES}\n") == "ä 🙂\t\\x1b]52;c;aGk=\\x07done\\x1b[2J\\x9b1m\\x0d\\x7f\n"


def test_a_table_has_none():
    """Its cells are stored text."""
    out = StringIO()
    print_table([{"name": "run", "problem": ESCAPES}], Console(file=out, width=120))
    assert not set(out.getvalue()) & set("\x1b\x07\x9b\r\x7f")
    assert "\\x1b[2J" in out.getvalue()


def test_a_warning_of_pythons_is_one_line_and_said_once(capsys):
    """Gymnasium colours its own, and each of many places repeats what is said."""
    for line in (150, 174):
        show_warning(
            UserWarning("\x1b[33mWARN: The obs is\nnot within the space.\x1b[0m"), UserWarning, "/a/b.py", line
        )
    assert capsys.readouterr().err == "warning: The obs is not within the space. (b.py, line 150)\n"
