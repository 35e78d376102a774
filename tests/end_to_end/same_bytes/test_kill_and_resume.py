"""A run that is killed anywhere, any number of times, ends with the same bytes as one that never was."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace

import pytest

from penstock.storage.digest import canonical_json

from ...support.processes.commands import is_alive, wait_until
from ...support.stored.stored_run import assert_same, assert_whole
from ..conftest import BRIEF, Settings
from .equality_runs import parameters

SYNCHRONOUS, OVERLAPPED = Settings(lag=0), Settings(lag=1)


def assert_undisturbed(run, references, settings):
    assert_whole(run, settings.all_rounds, settings.tiles, settings.rows)
    assert_same(run, references.content(settings))


def kill(pids):
    """Kill processes, and wait until they have ended: until then the scheduler may still list their members."""
    for pid in pids:
        with suppress(ProcessLookupError):  # a flow that was faster, which is resumed without effect
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)), "the end of what was killed")


@pytest.mark.parametrize(
    ("settings", "member", "rounds"),
    [
        pytest.param(SYNCHRONOUS, "act-0", (0, 25), marks=pytest.mark.slow),
        pytest.param(OVERLAPPED, "act-0", (11,), marks=pytest.mark.slow),
        pytest.param(SYNCHRONOUS, "learn-0", (39,), marks=pytest.mark.slow),
        (OVERLAPPED, "learn-0", (0, 25)),
    ],
    ids=lambda value: f"lag{value.lag}" if isinstance(value, Settings) else str(value),
)
def test_a_killed_worker_restarts_from_stored_rounds(bench, cluster, references, settings, member, rounds):
    """Killing the process of an act or learn task costs its restart: the same flow ends with the same bytes."""
    with cluster.members.learners_held():
        flow, run = bench.train("killed", settings), bench.run("killed")
        pid = cluster.members.pid_of(member, "killed", flow)
    for number, round_ in enumerate(rounds):
        pid = cluster.members.pid_of(member, "killed", flow) if number else pid
        run.wait_for_round(round_, flow)
        kill([pid])
    flow.succeed()
    assert_undisturbed(run, references, settings)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        pytest.param(SYNCHRONOUS, (19,), id="at-a-commit", marks=pytest.mark.slow),
        pytest.param(OVERLAPPED, (0, 31), id="at-its-start-and-later"),
    ],
)
def test_a_killed_flow_is_resumed(bench, references, settings, rounds):
    """A run whose flow was killed at its start, at a commit or within a stage is resumed to the same bytes."""
    flow, run = bench.train("killed", settings), bench.run("killed")
    for round_ in rounds:
        run.wait_for_round(round_, flow)
        flow.kill()
        flow = bench.resume("killed")
    flow.succeed()
    assert_undisturbed(run, references, settings)


@pytest.mark.slow
def test_run_with_stored_placement_settings_is_resumed(bench, references):
    """A killed run whose run.json has the old name of `distribution`, `placement`, ends with the same bytes."""
    flow, run = bench.train("killed", SYNCHRONOUS), bench.run("killed")
    run.wait_for_round(19, flow)
    flow.kill()
    description = run.folder.load()
    assert description["identity"]["placement"]["policy"] == "single_learner_coarse"
    description["config"]["placement"] = description["config"].pop("distribution")
    (bench.folder / "runs" / "killed" / "run.json").write_bytes(canonical_json(description) + b"\n")
    bench.resume("killed").succeed()
    assert_undisturbed(run, references, SYNCHRONOUS)


def test_everything_killed_at_once_is_resumed(bench, cluster, references):
    """Killing the flow and all workers at once, and resuming while they are restarted, ends with the same bytes."""
    workers = list(cluster.members.working())
    with cluster.members.learners_held():
        flow, run = bench.train("killed", OVERLAPPED), bench.run("killed")
        cluster.members.pid_of("learn-0", "killed", flow)
    run.wait_for_round(27, flow)
    kill([flow.pid, *workers])
    assert flow.wait() in {0, -signal.SIGKILL}
    bench.resume("killed").succeed()
    assert_undisturbed(run, references, OVERLAPPED)


@pytest.mark.slow
def test_at_most_one_round_of_a_tile_is_acted_again(bench, cluster):
    """With learner and flow killed at round 40 of 50, each tile acts at most one round again."""
    settings = Settings(stages=1, rounds=50, tiles=2, act_tasks=1)
    for number in range(5):
        name = f"killed-{number}"
        with cluster.members.learners_held():
            flow, run = bench.train(name, settings), bench.run(name)
            learner = cluster.members.pid_of("learn-0", name, flow)
        run.wait_for_round(40, flow)
        kill([learner, flow.pid])
        cluster.members.wait_whole(cluster.workers)
        cluster.members.wait_idle()
        if not run.commits():
            break  # otherwise the kill came too late
    else:
        pytest.fail("five stages were committed before the kill at round 40 of 50")
    stored = len(run.stored_rounds())
    bench.resume(name).succeed()
    acted = sum(part["env_steps"] for part in run.timings()[-1]["act"]) // (
        settings.envs_per_tile * settings.round_steps
    )
    assert acted + stored <= (settings.all_rounds + 1) * settings.tiles
    assert_whole(run, settings.all_rounds, settings.tiles, settings.rows)


@pytest.mark.slow
def test_a_policys_memory_survives_a_kill(bench, cluster):
    """A recurrent network's memory is stored with the environments: a killed act task continues with the same bytes."""
    memory = ("--algorithm.network", "recurrent", "--algorithm.features", "8", "--algorithm.sequence-steps", "8")
    bench.train("alone", BRIEF, *memory).succeed()
    with cluster.members.learners_held():
        flow, run = bench.train("killed", BRIEF, *memory), bench.run("killed")
        pid = cluster.members.pid_of("act-0", "killed", flow)
    run.wait_for_round(2, flow)
    kill([pid])
    flow.succeed()
    assert_same(run, bench.run("alone").content())


@pytest.mark.slow
@pytest.mark.parametrize("settings", [BRIEF, replace(BRIEF, lag=1)])
def test_reward_sums_that_run_on_survive_a_kill(bench, cluster, settings):
    """Each environment's sum is in the checkpoint, from which a killed learner and a killed flow continue."""
    running = ("--algorithm.normalize-reward", "true", "--algorithm.reward-normalization", "running")
    bench.train("alone", settings, *running).succeed()
    with cluster.members.learners_held():
        flow, run = bench.train("killed", settings, *running), bench.run("killed")
        pid = cluster.members.pid_of("learn-0", "killed", flow)
    run.wait_for_round(settings.rounds + 1, flow)
    kill([pid, flow.pid])
    bench.resume("killed").succeed()
    assert_same(run, bench.run("alone").content())
    sums = [parameters(run, stage)["params/reward_sums/sum"] for stage in range(settings.stages)]
    assert all(each.shape == (settings.tiles * settings.envs_per_tile,) and each.any() for each in sums)
    assert (sums[0] != sums[1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("act_tasks", [1, 4])
def test_bytes_do_not_depend_on_act_tasks(bench, references, act_tasks):
    """1, 2 and 4 act tasks over the same tiles give the same bytes."""
    bench.train("placed", SYNCHRONOUS, "--act-tasks", str(act_tasks)).succeed()
    assert_same(bench.run("placed"), references.content(SYNCHRONOUS))


@pytest.mark.slow
def test_a_run_with_its_own_workers_survives_kills(bench, references):
    """A killed member restarts, a killed flow ends its workers, and a resume completes the run.

    Every process is a new one, as on a laptop.
    """
    flow, run = bench.train_alone("alone", OVERLAPPED, cold=True), bench.run("alone")
    run.wait_for_round(4, flow)
    # Only the run itself can ask its scheduler which worker has which member.
    kill([flow.own_workers()[0].pid])
    run.wait_for_round(21, flow)
    started = flow.descendants()
    flow.kill()
    wait_until(lambda: not any(process.is_running() for process in started), "the end of the flow's own workers")
    bench.penstock("resume", "alone", "--store", bench.store, cold=True).succeed()
    assert_undisturbed(run, references, OVERLAPPED)


@pytest.mark.slow
def test_a_worker_that_dies_repeatedly_is_named(bench, cluster):
    """When Dask gives a task up, the run ends with an error that names the member, and it can be resumed."""

    def allow(failures, dask_scheduler=None):
        dask_scheduler.allowed_failures, failures = failures, dask_scheduler.allowed_failures
        return failures

    settings = Settings(stages=1, rounds=40, tiles=2, act_tasks=1)
    before = cluster.members.client.run_on_scheduler(allow, 0)
    try:
        with cluster.members.learners_held():
            flow, run = bench.train("dying", settings), bench.run("dying")
            pid = cluster.members.pid_of("act-0", "dying", flow)
        run.wait_for_round(5, flow)
        kill([pid])
        flow.refuse("act-0", "resume")
    finally:
        cluster.members.client.run_on_scheduler(allow, before)
    bench.resume("dying").succeed()
    assert_whole(run, settings.all_rounds, settings.tiles, settings.rows)
