"""A run that loses a process under any policy ends with the same bytes."""

from __future__ import annotations

import os
import signal

import pytest

from ...support.stored.stored_run import assert_same
from .equality_runs import (
    APART,
    BOARD,
    MEMORIES,
    MEMORY,
    Small,
    start,
)

FLOW = "flow"
ATTEMPTS = 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "policy", "lost"),
    [
        ("impala", "single_learner_fine", ("env-1", "learn-0")),
        ("mappo", "multiple_learners", ("worker-1", "worker-0")),
        ("ippo", "single_learner_fine", ("env-0", FLOW)),
        ("ppo", "gpu_only", (None, "worker-0")),
        ("sac", "environments", (None, "env-0")),
        ("dqn", "central", ("server-0", FLOW)),
        (BOARD, "multiple_learners", ("worker-1", FLOW)),
        ("qr_dqn", "single_learner_fine", ("learn-0", FLOW)),
        (MEMORY, "single_learner_fine", ("learn-0", FLOW)),
        (MEMORIES, "multiple_learners", ("worker-1", FLOW)),
        ("td3", "multiple_learners", ("worker-1", FLOW)),
        (APART, "agents", ("learn-1", FLOW)),
    ],
)
def test_losing_a_process_changes_no_byte(policy_runs, policy_bench, policy_cluster, algorithm, policy, lost):
    """A kill within the first stage, or the second, whose window begins in the first, changes no byte.

    A lost member restarts its stage. A lost flow is resumed; another number of learners is refused, as its sums would
    be rounded differently.
    """
    expected = policy_runs.get(algorithm, policy).content()
    for attempt in range(ATTEMPTS):
        name = f"killed-{attempt}"
        in_time = kill_each(policy_bench, policy_cluster, name, algorithm, policy, lost)
        assert_same(policy_bench.run(name), expected)
        if in_time:
            return
    raise AssertionError(f"in {ATTEMPTS} runs a kill came when its stage was over")


def kill_each(bench, cluster, name, algorithm, policy, lost) -> bool:
    """Start a run, kill what is to be lost in each stage, and wait for the end; return whether all kills were in time.

    A member that is killed when its stage is already over is not missed.
    """
    flow, run, said, in_time = start(bench, name, algorithm, policy), bench.run(name), "", True
    small = Small(algorithm=algorithm)
    for stage, member in enumerate(lost):
        if stage:
            run.wait_for_commit(stage - 1, flow)
        if member is None:
            continue
        pid = None if member == FLOW else cluster.members.pid_of(member, name, flow)
        run.wait_for_round(stage * small.rounds + 1, flow)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        else:
            flow.send(signal.SIGKILL)
            if flow.wait() == 0:
                return False  # all of the run was over
            assert flow.wait() == -signal.SIGKILL
            in_time &= len(run.commits()) == stage
            said += flow.output
            bench.resume(name, "--learn-tasks", "1").refuse("distribution.learn_tasks")
            flow = bench.resume(name)
    flow.succeed()
    said += flow.output
    members = [(stage, member) for stage, member in enumerate(lost) if member not in (None, FLOW)]
    return in_time and all(f"stage={stage} restarts: {member} was lost" in said for stage, member in members)
