"""Parts of several learners become what one would have returned; members that disagree are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.storage.errors import DivergedError, StageMismatchError
from penstock.storage.refs import Ref, ShardRef, SnapshotRef
from penstock.storage.runs.timings import ActTimes, EdgeCount, LearnTimes, ProcessUsage, ServerTimes
from penstock.tasks.driver.results import by_component, merge_learned, stage_commit, sum_edges, usage_by_process
from penstock.tasks.runtime.results import ActResult, LearnResult, MemberResult, Published, ServerResult
from penstock.tasks.setup.config.run import TrainConfig

PUBLISHED = Published((SnapshotRef("s-a", "a", 1, 2),), Ref("c-a", "a", 1), 2)


def part(
    replica: int, shards: list[tuple[int, int]], loss: dict[int, tuple[float, int]], returns: list[float]
) -> LearnResult:
    return LearnResult(
        shards=tuple(ShardRef(f"{round_}-{tile}", "d", 1, round_, tile, 8) for round_, tile in shards),
        outputs={"loss": loss},
        episodes=len(returns),
        return_sum=sum(returns),
        length_sum=10 * len(returns),
        parameters="same",
        published=None,
        times=LearnTimes(
            member=f"worker-{replica}",
            env_steps=8 * len(shards),
            learn_seconds=1.0,
            wait_seconds=0.0,
            edges={"learn -> learn": EdgeCount(100, 2)},
        ),
    )


def results(*parts: ActResult | LearnResult | ServerResult) -> list[MemberResult]:
    return [MemberResult(one.times.member, "source", (one,)) for one in parts]


FIRST = part(0, [(0, 0), (1, 0)], {0: (1.0, 1), 1: (5.0, 2)}, [3.0])
SECOND = part(1, [(0, 1), (1, 1)], {0: (4.0, 3)}, [6.0, 9.0])
SERVER = ServerResult("same", PUBLISHED, ServerTimes(member="server-0", serve_seconds=1.0))


def test_parts_of_several_learners_merge_into_one():
    """Shards by round and tile, means over rows and then over rounds, episodes of all."""
    merged = merge_learned(0, by_component(results(replace(FIRST, published=PUBLISHED), SECOND)))
    assert [(shard.round, shard.tile) for shard in merged.shards] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert merged.metrics == {"loss": (13.0 / 4 + 5.0) / 2, "episode_return": 6.0, "episode_length": 10.0}
    assert (merged.published, merged.episodes, merged.env_steps) == (PUBLISHED, 3, 32)


def test_metrics_of_a_single_learner_are_unchanged_to_the_last_bit():
    """Dividing a mean by the number it was multiplied with would change it."""
    assert 0.1 * 3 / 3 != 0.1
    alone = replace(part(0, [(0, 0)], {0: (0.1, 3)}, []), published=PUBLISHED)
    assert merge_learned(0, by_component(results(alone))).metrics == {"loss": 0.1}


def test_rounds_are_averaged_in_the_order_of_their_numbers():
    """A sum of floating-point numbers depends on the order: it is that of the rounds, 10 after 2."""
    values = {round_: (0.1 * round_, 1) for round_ in (10, 2, 3, 1)}
    alone = replace(part(0, [(0, 0)], values, []), published=PUBLISHED)
    expected = sum(0.1 * round_ for round_ in (1, 2, 3, 10)) / 4
    assert merge_learned(0, by_component(results(alone))).metrics == {"loss": expected}


def test_snapshots_and_checkpoint_are_those_of_the_server():
    """The server holds sync, so the learners have published nothing."""
    assert merge_learned(0, by_component(results(FIRST, SECOND, SERVER))).published == PUBLISHED


@pytest.mark.parametrize("other", ["worker-1", "server-0"])
def test_members_that_disagree_are_named(other: str):
    """A learner, or the server, that ended with other parameters than the rest: nothing is committed."""
    server = replace(SERVER, parameters="different") if other == "server-0" else SERVER
    second = replace(SECOND, parameters="different") if other == "worker-1" else SECOND
    with pytest.raises(StageMismatchError, match=f"stage 4: parameters differ .*: .*{other} has different"):
        merge_learned(4, by_component(results(FIRST, second, server)))


def test_owners_of_agents_count_their_common_rows_once():
    """Each learned all shards and has outputs of its own; one that learned another shard is named."""
    shards = [(0, 0), (0, 1), (1, 0), (1, 1)]
    first = replace(part(0, shards, {0: (1.0, 2), 1: (5.0, 2)}, [3.0, 6.0]), published=PUBLISHED)
    second = replace(part(1, shards, {}, [3.0, 6.0]), outputs={"other": {0: (2.0, 2), 1: (3.0, 2)}})
    merged = merge_learned(0, by_component(results(first, second)), owners=True)
    assert merged.shards == first.shards
    assert merged.metrics == {"loss": 3.0, "other": 2.5, "episode_return": 4.5, "episode_length": 10.0}
    assert (merged.published, merged.episodes, merged.env_steps) == (PUBLISHED, 2, 32)
    another = replace(second, shards=(replace(second.shards[0], digest="other"), *second.shards[1:]))
    with pytest.raises(StageMismatchError, match="stage 4: worker-1 learned other shards than worker-0"):
        merge_learned(4, by_component(results(first, another)), owners=True)


def test_components_of_one_member_are_told_apart():
    """A member that acts and learns has a result for each, and edges are summed over both."""
    edges = {"learn -> learn": EdgeCount(1, 1), "collect -> buffer": EdgeCount(7, 1)}
    times = ActTimes(member="worker-0", env_steps=8, act_seconds=1.0, wait_seconds=0.0, edges=edges)
    acted = ActResult((), {0: ("d",)}, times)
    merged = by_component([MemberResult("worker-0", "source", (acted, FIRST))])
    assert (merged.act, merged.learn, merged.env, merged.server) == ((acted,), (FIRST,), (), ())
    assert sum_edges(merged) == {"learn -> learn": EdgeCount(101, 3), "collect -> buffer": EdgeCount(7, 1)}


def test_usage_counts_a_shared_process_once():
    """Members that share a process report the same resources: those of the one that ran longest count."""
    usages = [
        (("a", 1), ProcessUsage(members=("act-0",), seconds=2.0, cpu_seconds=1.0)),
        (("a", 1), ProcessUsage(members=("act-1",), seconds=3.0, cpu_seconds=1.5)),
        (("b", 1), ProcessUsage(members=("learn-0",), seconds=3.0, cpu_seconds=2.0)),
    ]
    assert usage_by_process(usages) == (
        ProcessUsage(members=("act-0", "act-1"), seconds=3.0, cpu_seconds=1.5),
        ProcessUsage(members=("learn-0",), seconds=3.0, cpu_seconds=2.0),
    )


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_stage_that_diverged_is_no_commit(broken: float):
    """Its metrics are not finite, which no commit can hold: the message names them and a remedy."""
    alone = replace(part(0, [(0, 0)], {0: (broken, 3)}, []), published=PUBLISHED)
    learned = merge_learned(0, by_component(results(alone)))
    said = rf"^stage 7 diverged: loss is {broken}, expected .*lower algorithm.learning_rate"
    with pytest.raises(DivergedError, match=said):
        stage_commit(TrainConfig().schedule, 7, "0" * 32, None, learned, (), None)
