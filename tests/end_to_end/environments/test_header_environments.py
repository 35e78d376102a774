"""A run whose environment is a C++ header is resumed without the header's file, to the same bytes."""

from __future__ import annotations

import pytest

from penstock import native

from ...support.stored.stored_run import assert_same, assert_whole
from ...tasks.environments.test_header import HEADER
from ..conftest import Settings

SETTINGS = Settings(stages=2, rounds=12, tiles=2, act_tasks=2)


@pytest.mark.slow
def test_a_killed_run_of_a_header_ends_with_the_same_bytes(bench, cluster):
    """The file is gone when the flow is killed in the second stage: members compile what the run stores."""
    file = bench.folder / "walk.hpp"
    file.write_text(HEADER)
    native.load(f"{HEADER}\n")  # compiled before, so that no member is late
    options = ("--environment.header", str(file), "--environment.settings.start", "2")
    bench.train("undisturbed", SETTINGS, *options).succeed()
    with cluster.members.learners_held():
        flow, run = bench.train("killed", SETTINGS, *options), bench.run("killed")
        cluster.members.pid_of("act-0", "killed", flow)
        file.unlink()
    run.wait_for_round(SETTINGS.rounds + 3, flow)
    flow.kill()
    bench.resume("killed").succeed()
    assert_whole(run, SETTINGS.all_rounds, SETTINGS.tiles, SETTINGS.rows)
    assert_same(run, bench.run("undisturbed").content())
