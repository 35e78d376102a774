"""The round-time model keeps its invariants: cores are shared, and more learners divide the rows and nothing else."""

from dataclasses import replace

import pytest

from penstock.tasks.setup.planning.round_time import PartSeconds

from .test_auto_policy import EVEN, config_of, seconds

BUSY = replace(EVEN, update_row=1e-4, update_row_cpu=1e-4)
"""Learning takes most of a round."""
WITH_LEARNERS = ("multiple_learners", "central", "environments", "gpu_only")


@pytest.mark.parametrize("policy", WITH_LEARNERS)
@pytest.mark.parametrize("parts", [EVEN, BUSY], ids=["small", "large"])
def test_a_second_learner_is_never_faster_on_one_core(policy: str, parts: PartSeconds):
    """One core computes the same rows for both, and more of everything else."""
    config, one_core = config_of(), replace(parts, cores=1)
    alone = seconds(config, one_core, "multiple_learners" if policy != "gpu_only" else policy)
    for learners in (2, 4, 8):
        assert seconds(config, one_core, policy, learn_tasks=learners) > alone


def test_learners_divide_rows_and_not_the_optimizers_steps():
    """However many they are, each takes all steps over all parameters."""
    config, many = config_of(), replace(BUSY, cores=64, collective=0.0, collective_cpu=0.0)
    found = [seconds(config, many, "multiple_learners", learn_tasks=learners) for learners in (1, 2, 4)]
    rows = config.environment.num_envs * config.schedule.round_steps
    acting = 64 * (EVEN.step + EVEN.infer) + EVEN.write
    for learners, tiles, round_seconds in zip((1, 2, 4), (4, 2, 1), found, strict=True):
        assert round_seconds == pytest.approx(
            tiles * acting + many.update + many.update_row * rows / learners + (learners > 1) * 0.004
        )
    slower = replace(many, update=many.update + 0.1, update_cpu=many.update_cpu + 0.1, optimizer=0.1)
    for learners, before in zip((1, 2, 4), found, strict=True):
        assert seconds(config, slower, "multiple_learners", learn_tasks=learners) == pytest.approx(before + 0.1)


@pytest.mark.parametrize("policy", WITH_LEARNERS)
@pytest.mark.parametrize("lag", [0, 1])
def test_more_cores_are_never_slower_and_slowed_ones_never_faster(policy: str, lag: int):
    """The prediction falls with the number of cores, and rises the more busy cores slow each other."""
    config = config_of(lag=lag)
    by_cores = [seconds(config, replace(BUSY, cores=cores), policy, learn_tasks=4) for cores in (1, 2, 3, 4, 8, 64)]
    assert by_cores == sorted(by_cores, reverse=True)
    assert by_cores[0] > by_cores[-1]
    two = replace(BUSY, cores=2)
    by_speed = [
        seconds(config, replace(two, busy_core_speed=speed), policy, learn_tasks=4) for speed in (1.0, 0.8, 0.5, 0.1)
    ]
    assert by_speed == sorted(by_speed)
    assert by_speed[-1] == pytest.approx(by_cores[0]), "two cores are never slower than one of them"


def test_a_learner_with_two_threads_has_no_core_left_for_a_second_learner():
    """A gradient by two threads takes half as long and as many CPU seconds, so that two learners gain nothing."""
    threads = replace(BUSY, update_row=BUSY.update_row / 2, cores=2)
    config = config_of()
    alone = seconds(config, threads, "multiple_learners")
    assert seconds(config, threads, "multiple_learners", learn_tasks=2) > alone - 2 * 64 * (EVEN.step + EVEN.infer)
    wide = replace(threads, cores=8)
    assert seconds(config, wide, "multiple_learners", learn_tasks=2) < seconds(config, wide, "multiple_learners")


def test_actors_and_learners_that_overlap_share_the_cores():
    """At lag 1 on one core, a round takes the CPU seconds of both; an environment that waits takes none of them."""
    config, one_core = config_of(lag=1), replace(EVEN, cores=1)
    acting = 4 * (64 * (EVEN.step_cpu + EVEN.infer) + EVEN.write)
    learning = EVEN.update_cpu + 32 * 64 * EVEN.update_row_cpu
    assert seconds(config, one_core, "single_learner_coarse") == pytest.approx(acting + learning + 0.004)
    waiting = replace(one_core, step=0.01)
    own = 64 * (0.01 + EVEN.infer) + EVEN.write
    assert seconds(config, waiting, "single_learner_coarse", act_tasks=4) == pytest.approx(own + 0.004)


def stale(lag: int = 0, **counts: int):
    return config_of(lag=lag, max_staleness=1, **counts)


def test_a_server_takes_one_step_for_all_and_with_staleness_one_for_each():
    """With `max_staleness` the server's steps may be the longest part; otherwise a learner's own chain is."""
    wide = replace(EVEN, cores=64, optimizer=1e-4, collective=1e-6)
    together = seconds(config_of(), wide, "central", learn_tasks=4)
    assert seconds(stale(), wide, "central", learn_tasks=4) == pytest.approx(together), "a chain is the same"
    slow = replace(wide, update=0.5, update_cpu=0.5, optimizer=0.5)
    waits = seconds(stale(), slow, "central", learn_tasks=4) - seconds(config_of(), slow, "central", learn_tasks=4)
    assert waits > 2.5 * 0.5, "the server takes four steps of half a second, where it took one"
    one_core = replace(slow, cores=1)
    assert seconds(stale(), one_core, "central", learn_tasks=4) > 4 * 0.5


def test_more_learners_without_staleness_cost_the_server_no_step():
    """On one core, four learners of a parameter server take the optimizer's CPU seconds once."""
    slow = replace(EVEN, update=0.5, update_cpu=0.5, optimizer=0.5, cores=1)
    config = config_of()
    assert seconds(config, slow, "central", learn_tasks=4) < 2 * 0.5
    assert seconds(config, slow, "multiple_learners", learn_tasks=4) > 4 * 0.5
