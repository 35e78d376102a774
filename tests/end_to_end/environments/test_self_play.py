"""A run that plays against its own versions is the same under every policy, after kills, and continued elsewhere."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ...support.processes.commands import is_alive, wait_until
from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import Settings
from ..same_bytes.equality_runs import POLICIES, assert_near, columns, parameters

if TYPE_CHECKING:
    from ...support.processes.commands import Cluster
    from ..conftest import Bench, References


@dataclass(frozen=True)
class SelfPlay(Settings):
    """Settings with a league: the third stage plays against the last versions of the first and of the second."""

    stages: int = 3
    rounds: int = 4
    tiles: int = 2
    act_tasks: int = 2
    opening_moves: int = 3

    def toml(self) -> str:
        game = super().toml().replace("[environment]", '[environment]\n            id = "ConnectFour-v0"')
        league = f'opponents = "league"\nsize = 2\nopening_moves = {self.opening_moves}'
        return f"{game}\n[league]\n{league}\n"


SETTINGS = SelfPlay()


def names(refs: list[dict[str, object]]) -> list[object]:
    return [ref["name"] for ref in refs]


@pytest.mark.slow
def test_a_league_gives_the_same_bytes_wherever_environments_are_stepped(bench: Bench, references: References):
    """Opponents that play in the processes of environments make the moves that they make in those of actors."""
    bench.train("apart", SETTINGS, "--policy", "single_learner_fine", "--env-tasks", "2").succeed()
    whole = references.run(SETTINGS)
    for mine, theirs in zip(bench.run("apart").commits(), whole.commits(), strict=True):
        for kind in ("shards", "states", "snapshots", "league", "checkpoint"):
            assert mine[kind] == theirs[kind], kind
    first, second, third = whole.commits()
    assert names(second["league"]) == [first["snapshots"][-1]["name"], second["snapshots"][-1]["name"]]
    assert names(third["league"]) == [second["snapshots"][-1]["name"], third["snapshots"][-1]["name"]]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["multiple_learners", "environments", "central"])
def test_a_league_gives_the_same_parameters_under_every_policy(policy_bench: Bench, references: References, policy):
    """Rows, opponents and parameters equal those of one learner with actors, numbers but for the rounding of sums."""
    policy_bench.train("apart", SETTINGS, "--policy", policy, *POLICIES[policy]).succeed()
    run, alone = policy_bench.run("apart"), references.run(SETTINGS)
    expected = columns(alone)
    for place, found in columns(run).items():
        assert_near(found, expected[place], f"round, tile {place}")
    for stage, (mine, theirs) in enumerate(zip(run.commits(), alone.commits(), strict=True)):
        assert_near(parameters(run, stage), parameters(alone, stage), f"stage {stage}")
        assert [ref["version"] for ref in mine["league"]] == [ref["version"] for ref in theirs["league"]]
        assert mine["episodes"] == theirs["episodes"]
    before, after = parameters(alone, 0), parameters(alone, 2)
    assert max(float(np.abs(after[name] - before[name]).max()) for name in before) > 1e-3


@pytest.mark.slow
def test_a_killed_flow_with_a_league_is_resumed(bench: Bench, references: References):
    """Killed in the second stage and in the third, it ends with all bytes."""
    flow, run = bench.train("killed", SETTINGS), bench.run("killed")
    for round_ in (5, 9):
        run.wait_for_round(round_, flow)
        flow.kill()
        flow = bench.resume("killed")
    flow.succeed()
    assert_same(run, references.content(SETTINGS))


@pytest.mark.slow
@pytest.mark.parametrize(("member", "round_"), [("act-0", 9), ("learn-0", 9), ("act-1", 1)])
def test_a_killed_worker_plays_the_same_opponents(
    bench: Bench, cluster: Cluster, references: References, member, round_
):
    """An actor or learner that is killed costs its restart: the flow ends with all bytes."""
    settings = SETTINGS
    with cluster.members.learners_held():
        flow, run = bench.train("killed", settings), bench.run("killed")
        pid = cluster.members.pid_of(member, "killed", flow)
    if round_ >= settings.rounds:
        run.wait_for_commit(round_ // settings.rounds - 1, flow)
        pid = cluster.members.pid_of(member, "killed", flow)
    run.wait_for_round(round_, flow)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the end of what was killed")
    flow.succeed()
    assert_same(run, references.content(SETTINGS))


@pytest.mark.slow
def test_a_forked_and_copied_league_ends_with_the_bytes_of_its_source(bench: Bench, references: References):
    """A fork has the opponents of the next stage and no other version, and a copy of it continues in another store."""
    source, afar = references.run(SETTINGS), str(bench.folder / "afar")
    bench.penstock(
        "fork", source.name, "forked", "--from-stage", "1", "--store", source.url, "--to", bench.store
    ).succeed()
    fork = bench.run("forked")
    commit = fork.commits()[-1]
    assert sorted(fork.store.list("snapshots/")) == sorted({*names(commit["league"]), *names(commit["snapshots"])})
    bench.penstock("copy", "forked", afar, "--store", bench.store).succeed()
    bench.resume("forked", store=afar).succeed()
    run = StoredRun(afar, "forked")
    assert run.commits() == source.commits()
    bench.penstock("verify", "forked", "--store", afar).succeed()


@pytest.mark.slow
def test_a_run_is_resumed_after_its_older_versions_were_collected(bench: Bench, references: References):
    """Garbage collection leaves the opponents of the next stage, and takes versions that nobody plays against."""
    flow, run = bench.train("killed", SETTINGS), bench.run("killed")
    run.wait_for_round(9, flow)
    flow.kill()
    collected = [name for name in run.store.list("snapshots/") if "/00000002-" in name]
    bench.penstock("gc", "killed", "--store", bench.store).succeed()
    league = names(run.commits()[1]["league"])
    assert len(league) == 2
    assert all(run.store.exists(name) for name in league)
    assert collected
    assert not any(run.store.exists(name) for name in collected)
    bench.resume("killed").succeed()
    assert run.commits() == references.run(SETTINGS).commits()
    bench.penstock("verify", "killed", "--store", bench.store).succeed()
