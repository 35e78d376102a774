"""Runs with `max_staleness` publish nothing that a kill, or a resume, later contradicts."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import pytest

from penstock.storage.refs import parse_snapshot_name
from penstock.storage.runs.continuing.arrival_orders import ArrivalOrder, stored_orders
from penstock.storage.runs.verification import verify_run

from ...support.processes.commands import wait_until
from ...support.stored.stored_run import StoredRun, assert_as_predicted, assert_whole
from .equality_runs import Small

BOUND = 1
STALE = ("--policy", "central", "--learn-tasks", "2", "--distribution.max_staleness", str(BOUND))
MADE_AGAIN = ("commits", "checkpoints", "snapshots", "timings", "latest.json", "lease.json")


@dataclass(frozen=True)
class Long(Small):
    """Long enough that a process can be killed between a published version and the stage's commit."""

    rounds: int = 60


@dataclass(frozen=True)
class Uniform(Small):
    """SAC: its losses are not independent, and its rows are drawn from a window."""

    algorithm: str = "sac"


@dataclass(frozen=True)
class Running(Small):
    """PPO with reward sums that run on from round to round, and sums of minibatches."""

    def toml(self) -> str:
        options = 'reward_normalization = "running"\nadvantage_normalization = "minibatch"'
        return super().toml().replace("normalize_reward = true", f"normalize_reward = true\n{options}")


def leads(order: tuple[int, ...], parts: int) -> list[int]:
    """Return how many minibatches each arrival's learner was ahead of the slowest."""
    sent, found = [0, 0], []
    for learner in order:
        found.append(sent[learner] // parts - min(sent) // parts)
        sent[learner] += 1
    assert sent[0] == sent[1]
    return found


def orders(run: StoredRun, stage: int) -> dict[str, bytes]:
    return {name: run.store.read(name) for name in stored_orders(run.store, stage, 0).values()}


def commits(run: StoredRun) -> list[bytes]:
    return [run.store.read(name) for name in run.store.list("commits/")]


def published(run: StoredRun) -> list[str]:
    return sorted(run.store.list("snapshots/"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "parts"), [(Small(), 1), (Running(), 1), (Uniform(), 3)], ids=["ppo", "running", "sac"]
)
def test_the_record_alone_gives_a_run_its_bytes(policy_bench, settings, parts):
    """A run with the same shards, states and orders, and nothing else, is learned to the same commits.

    The stored orders keep the bound, traffic is as predicted, and timings tell how stale gradients were.
    """
    policy_bench.train("free", settings, *STALE).succeed()
    run = policy_bench.run("free")
    assert_whole(run, settings.all_rounds, settings.tiles, settings.rows)
    for stage, timings in enumerate(run.timings()):
        arrivals = [ArrivalOrder.decode(data, name).arrivals for name, data in orders(run, stage).items()]
        assert max(max(leads(order, parts)) for order in arrivals) <= BOUND
        (counts,) = (server["staleness"] for server in timings["server"])
        assert counts["minibatches"] * parts == sum(map(len, arrivals)) > 0
        assert 0 <= counts["mean_lead"] <= counts["greatest_lead"] <= BOUND
        assert counts["mean_delay"] <= counts["greatest_delay"]
    if parts == 1:
        assert len(orders(run, 0)) == settings.rounds
        assert_as_predicted(run, settings)
    again = StoredRun(run.url, "again")
    for name in run.store.list():
        if name.partition("/")[0] not in MADE_AGAIN:
            again.store.write(name, [run.store.read(name)])
    policy_bench.resume("again").succeed()
    assert commits(again) == commits(run)
    assert published(again) == published(run)
    assert verify_run(again.folder).faults == verify_run(run.folder).faults == ()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["server-0", "worker-1", "flow"])
def test_what_was_published_is_not_contradicted_after_a_kill(policy_bench, policy_cluster, lost):
    """A kill between a published version and the commit: the stage is learned again to the same versions.

    Every version has one object, those from before the kill among them; no attempt was given up, no stored order was
    changed, and the run verifies.
    """
    settings = Long(stages=1)
    run = policy_bench.run("killed")
    with policy_cluster.members.learners_held():
        flow = policy_bench.train(run.name, settings, *STALE)
        victim = flow.pid if lost == "flow" else policy_cluster.members.pid_of(lost, run.name, flow)
    wait_until(lambda: len(published(run)) > 5, "five published versions")
    os.kill(victim, signal.SIGKILL)
    before, stored = published(run), orders(run, 0)
    assert not run.commits(), "the stage was killed before its commit"
    assert stored.keys() >= {f"orders/00000000/{parse_snapshot_name(name).version - 1:08d}.json" for name in before[1:]}
    if lost == "flow":
        assert flow.wait() == -signal.SIGKILL
        flow = policy_bench.resume(run.name)
    flow.succeed()
    assert set(before) <= set(published(run))
    versions = [parse_snapshot_name(name).version for name in published(run)]
    assert versions == list(range(settings.rounds + 1))
    assert run.store.list("attempts/") == []
    assert {name: run.store.read(name) for name in stored} == stored
    assert_whole(run, settings.rounds, settings.tiles, settings.rows)
    assert "intact" in policy_bench.penstock("verify", run.name, "--store", policy_bench.store).succeed()
