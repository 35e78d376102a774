"""`penstock evaluate --follow`: every commit is evaluated beside training, and training never notices."""

from __future__ import annotations

import json

from .conftest import BRIEF
from .stored import assert_same


def test_an_evaluation_follows_training_and_does_not_reach_it(bench, references):
    """It begins while the run goes on and ends with it, one result a commit, kept; the run has the same bytes.

    Each is what the same command gives of the finished run, and a second follower has nothing left to do.
    """
    flow, run = bench.train("live", BRIEF), bench.run("live")
    run.wait_for_commit(0, flow)
    follow = ("evaluate", "live", "--follow", "--episodes", "4", "--key", "3", "--store", bench.store, "--json")
    follower = bench.penstock(*follow)
    flow.succeed()
    found = [json.loads(line) for line in follower.succeed().splitlines()]
    assert [result["version"] for result in found] == [BRIEF.rounds, 2 * BRIEF.rounds]
    kept = [json.loads(run.store.read(name)) for name in run.store.list("evaluations/")]
    assert kept == found
    assert_same(run, references.content(BRIEF))
    assert bench.penstock(*follow).succeed() == ""
    alone = json.loads(bench.penstock(*follow[:2], "--stage", "0", *follow[3:]).succeed())
    assert {**alone, "seconds": 0} == {**found[0], "seconds": 0}
