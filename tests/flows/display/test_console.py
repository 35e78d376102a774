"""Tables that commands print, on terminals of any width and into pipes."""

import errno
import io
import os

import pytest
from rich.console import Console

from penstock.flows.display.console import LivePanel, ProgressConsole, fitting, print_table

ROWS = [{"stage": 7, "env_steps": 92160, "return": None, "shard bytes": 123456789}]


def printed(width: int, *, terminal: bool) -> str:
    file = io.StringIO()
    print_table(ROWS, Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue()


@pytest.mark.parametrize("width", [20, 40, 200])
def test_a_terminal_shows_whole_cells_and_names_what_does_not_fit(width):
    """Columns are kept from the left, without an ellipsis; omitted columns are named."""
    found = printed(width, terminal=True)
    assert "…" not in found
    assert "92160" in found
    assert ("123456789" in found) == (width > 20)
    assert ("not shown" in found) == (width == 20)
    if width == 20:
        assert "shard bytes" in " ".join(found.split())


def test_a_pipe_gets_every_cell_whole():
    """A narrow width, as pipes report it, does not cut cells."""
    found = printed(12, terminal=False)
    assert "123456789" in found
    assert "not shown" not in found


def test_a_line_keeps_the_parts_that_fit():
    """Last parts are left out, the first one never."""
    parts = ["stage 1", "return 5.0", "learner waits 3%"]
    assert [fitting(parts, width) for width in (80, 20, 3)] == ["  ".join(parts), "stage 1  return 5.0", "stage 1"]


def test_square_brackets_are_text():
    """Names and lists in a table are printed as they are, not taken for colours."""
    file = io.StringIO()
    print_table([{"setting [bold]": "[64, 64]", "value": "penstock-rl[mujoco]"}], Console(file=file, width=80))
    assert file.getvalue().split() == ["setting", "[bold]", "value", "[64,", "64]", "penstock-rl[mujoco]"]


def test_square_brackets_are_text_in_names_of_columns_that_do_not_fit():
    """The line below a narrow table names columns with their brackets."""
    file = io.StringIO()
    rows = [{"first": "x" * 18, "[bold]second": "y" * 18}]
    print_table(rows, Console(file=file, width=20, force_terminal=True, color_system=None))
    assert "[bold]second" in " ".join(file.getvalue().split())


def test_square_brackets_are_text_in_warnings():
    """Advice and errors of somebody else's code are printed whole; nothing is taken for markup."""
    file = io.StringIO()
    panel = LivePanel(Console(file=file, width=200))
    for text in ("pip install 'penstock-rl[telemetry]'", "bad path [/nope] here"):
        panel.warn(text)
        assert text in file.getvalue()


def test_a_reader_that_leaves_ends_no_run(capsys: pytest.CaptureFixture[str]):
    """As `penstock train | head -1` does: it is said once on the error stream, and what follows goes nowhere."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", buffering=1) as file:
        panel = LivePanel(ProgressConsole(file=file))
        os.close(reading)
        for _ in range(3):
            panel.warn("slow")
        file.write("the last line\n")
    said = capsys.readouterr().err
    assert said == "warning: no progress is printed any more: Broken pipe; the run goes on\n"


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, _: str) -> int:
        """Have no room."""
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_panel_that_can_not_be_written_ends_no_run(capsys: pytest.CaptureFixture[str]):
    """On a full disk: it says so once, on the error stream, and is silent from then on."""
    panel = LivePanel(Console(file=Full()))
    for _ in range(3):
        panel.note("starting")
        panel.warn("slow")
    said = capsys.readouterr().err
    assert said == "warning: no progress is printed any more: No space left on device; the run goes on\n"
