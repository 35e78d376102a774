"""A command's progress, in words."""

import pytest

from penstock.flows.display import working as working_module
from penstock.flows.display.working import Working, describe_progress


@pytest.mark.parametrize(
    ("done", "total", "seconds", "expected"),
    [
        (300, 1200, 3.0, "300 of 1,200 objects, 100/s, 9 s left"),
        (5, None, 10.0, "5 objects, 0.50/s"),
        (0, 10, 1.0, "0 of 10 objects, 0.00/s"),
        (10, 10, 0.0, "10 of 10 objects, 0.00/s"),
    ],
)
def test_progress_has_amount_rate_and_time_left(done, total, seconds, expected):
    """Without a total or a rate, there is no time left to tell."""
    assert describe_progress(done, total, seconds, "objects") == expected


def test_work_is_announced_at_once_on_the_error_output(capsys):
    """Each part is one line where there is no terminal; the standard output stays empty."""
    with Working("reading run c1", "commits") as working:
        assert capsys.readouterr() == ("", "reading run c1\n")
        working.update(1, 2)
        working.say("drawing run c1")
    assert capsys.readouterr() == ("", "drawing run c1\n")


def test_progress_counts_the_unit_that_was_given(capsys, monkeypatch):
    """Not objects, which is the default; until another part of the work is named."""
    monkeypatch.setattr(working_module, "_LINE_SECONDS", 0.0)
    with Working("simulating", "schedules") as working:
        working.update(1, 2)
        working.say("reading run c1", "commits")
        working.update(1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "simulating",
        "simulating: 1 of 2 schedules",
        "reading run c1",
        "reading run c1: 1 of 2 commits",
    ]


def test_quiet_work_shows_nothing(capsys):
    """As with --json."""
    with Working("reading run c1", quiet=True) as working:
        working.say("drawing run c1")
        working.update(1, 2)
    assert capsys.readouterr() == ("", "")
