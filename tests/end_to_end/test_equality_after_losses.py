"""A run that loses a process under any policy ends with the same bytes."""

from __future__ import annotations

import os
import signal

import pytest

from ..support.stored_run import assert_same
from .equality_runs import (
    APART,
    BOARD,
    MEMORY,
    Small,
    start,
)

FLOW = "flow"


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
        ("td3", "multiple_learners", ("worker-1", FLOW)),
        (APART, "agents", ("learn-1", FLOW)),
    ],
)
def test_losing_a_process_changes_no_byte(policy_runs, policy_bench, policy_cluster, algorithm, policy, lost):
    """A kill within the first stage, or the second, whose window begins in the first, changes no byte.

    A lost member restarts its stage. A lost flow is resumed; another number of learners is refused, as its sums would
    be rounded differently.
    """
    expected, small = policy_runs.get(algorithm, policy).content(), Small(algorithm=algorithm)
    flow, run, said = start(policy_bench, "killed", algorithm, policy), policy_bench.run("killed"), ""
    for stage, member in enumerate(lost):
        if stage:
            run.wait_for_commit(stage - 1, flow)
        if member is None:
            continue
        pid = flow.pid if member == FLOW else policy_cluster.members.pid_of(member, "killed")
        run.wait_for_round(stage * small.rounds + 1, flow)
        os.kill(pid, signal.SIGKILL)
        if member == FLOW:
            assert flow.wait() == -signal.SIGKILL
            assert len(run.commits()) == stage
            said += flow.output
            policy_bench.resume("killed", "--learn-tasks", "1").refuse("distribution.learn_tasks")
            flow = policy_bench.resume("killed")
    flow.succeed()
    said += flow.output
    for stage, member in enumerate(lost):
        assert member in (None, FLOW) or f"stage={stage} restarts: {member} was lost" in said
    assert_same(run, expected)
