"""A placer's progress: lines in a log, a picture on a terminal."""

import io

from rich.console import Console

from penstock.flows.display.placing_panel import PlacingPanel, clock, describe_placing, draw_text
from penstock.native.floorplan import BlockSpec, PlaceProgress, create_placement_cost, generate_block

from ...support.environments.blocks import macro, read


def progress(plc, **changed):
    fields = {
        "segments_done": 3, "segments": 60, "moves_done": 1500, "moves": 30000, "cost": 1.2, "best": 1.1,
        "start_cost": 1.5, "temperature": 1e-4, "seconds": 61.0, "seconds_left": 3725.0, "layout": plc,
    }  # fmt: skip
    return PlaceProgress(**{**fields, **changed})


def test_progress_in_words(tmp_path):
    """While the speed is measured there is a cost; then also what is done, and the time left once it is known."""
    plc = read(tmp_path, macro("A", 4, 4, 10, 10))
    assert describe_placing(progress(plc)) == (
        "segment 3 of 60, 1,500 of 30,000 moves, best 1.100000 (start 1.500000), 1:02:05 left"
    )
    assert describe_placing(progress(plc, seconds_left=None)).endswith("(start 1.500000)")
    assert describe_placing(progress(plc, segments=0)) == "cost 1.200000, measuring how many moves fit into the time"
    assert [clock(seconds) for seconds in (0.4, 59.6, 3600)] == ["0:00", "1:00", "1:00:00"]


def test_a_picture_in_characters(tmp_path):
    """Hard macros are whole blocks and soft ones are shaded, also without colours; the upper edge is above."""
    plc = read(tmp_path, macro("A", 10, 10, 5, 5) + macro("B", 10, 5, 15, 2.5) + macro("Grp_0", 10, 10, 15, 15))
    plc.set_canvas_size(20.0, 20.0)
    assert draw_text(plc, 8, 4).plain.splitlines() == ["    ░░░░", "    ░░░░", "████    ", "████████"]
    assert draw_text(plc, 4, 1).plain == "▄▄▀▀"
    plc.unplace_all_nodes()
    assert draw_text(plc, 4, 2).plain.split() == []


def test_lines_where_there_is_no_terminal(tmp_path, capsys):
    """One at the start, none in the first seconds, none at all if quiet; the standard output stays empty."""
    plc = read(tmp_path, macro("A", 4, 4, 10, 10))
    with PlacingPanel("block.plc") as panel:
        panel.update(progress(plc))
    assert capsys.readouterr() == ("", "placing block.plc\n")
    with PlacingPanel("block.plc", quiet=True) as panel:
        panel.update(progress(plc))
    assert capsys.readouterr() == ("", "")


def test_a_panel_on_a_terminal(tmp_path, monkeypatch):
    """Costs, time left, how to continue and the picture fit; a terminal with little room gets no picture."""
    plc = create_placement_cost(*generate_block(tmp_path, BlockSpec(hard_macros=4, soft_macros=4)))
    monkeypatch.setenv("TERM", "xterm")
    for height, pictured in ((24, True), (6, False)):
        written = io.StringIO()
        panel = PlacingPanel("block.plc")
        panel._console = Console(file=written, force_terminal=True, width=80, height=height, color_system=None)
        monkeypatch.setattr(Console, "encoding", "utf-8")
        with panel:
            panel.update(progress(plc))
            panel.update(progress(plc, segments=0))
        said = written.getvalue()
        assert "best 1.100000   now 1.200000   start 1.500000" in said
        assert "1:02:05 left" in said
        assert "measuring how many moves fit" in said
        assert ("█" in said) == pictured
