"""The capacity model agrees with cases that were computed by hand, and keeps its invariants."""

from dataclasses import replace

import pytest

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.planning.capacity_model import REMEDIES, actor_cpu_seconds, learner_cpu_seconds, predict
from penstock.tasks.setup.planning.measured_constants import constants, cost, with_assumptions
from penstock.tasks.setup.planning.operation_counts import (
    Deployment,
    StageSeconds,
    commit_bytes,
    expected_polls,
    hints,
    read_bytes,
    scheduler_messages,
    store_requests,
    written_bytes,
)

from .test_auto_policy import EVEN, SIZES

FOUR = Deployment(
    actors=4, learners=1, actors_per_node=2, processes_per_node=1, tiles_per_actor=2, envs_per_tile=8, round_steps=64,
    rounds_per_stage=10, lag=0, lease_seconds=15.0, client="s3+obstore",
)  # fmt: skip
GIVEN = {name: constant.value for name, constant in constants().items()}


def test_requests_of_a_stage_are_those_of_its_members():
    """Two nodes, three processes, eight tiles, ten rounds in ten seconds: each kind is computed by hand."""
    asked = store_requests(FOUR, SIZES, StageSeconds(stage=10.0, snapshot_wait=1.0, shard_wait=0.3))
    expected = {
        # the flow; the lease, and polls of it; previous commit, checkpoint; moved states; shards; versions
        "get": 1 + 2 + 3 * (1 + 2) + 3 + 1 + 4 + 80 + 2 * 10,
        # the flow's three; the lease; shards and states; versions and the checkpoint
        "put": 3 + 2 + 2 * 80 + 11,
        "head": 1,
        # shards and states at the start, snapshots; waiters, two processes and a learner, poll 1.75 or 0.6 times
        "list": 2 * 4 + 1 + 1 + 2 * 10 * 1.75 + 10 * 0.6,
        # all states but the last two
        "delete": 8 * 8,
    }
    assert asked == pytest.approx(expected)


def test_a_single_node_reads_no_shards_snapshots_or_states():
    """Actors and learner on one node share its cache, and a folder gets no requests."""
    one = replace(FOUR, actors_per_node=4)
    asked = store_requests(one, SIZES, StageSeconds(10.0, 0.0, 0.0))
    assert asked["get"] == 1 + 2 + 2 * (1 + 2) + 1 + 1
    assert read_bytes(one, SIZES) == commit_bytes(one) + SIZES.checkpoint_bytes
    asked = store_requests(replace(one, client=None), SIZES, StageSeconds(10.0, 1.0, 1.0))
    assert set(asked.values()) == {0}


def test_cpu_seconds_are_those_of_the_members_work():
    """A folder, by hand: one process of four actors starts two tiles each, and ten rounds are acted and learned."""
    one = replace(FOUR, actors_per_node=4, client=None)
    read = 80 * GIVEN["read_ref_seconds"]
    acted = 64 * (EVEN.step_cpu + EVEN.infer) + EVEN.write
    begun = 4 * 2 * GIVEN["begin_seconds"] + read + 10 * 4 * EVEN.fetch
    received = 10 * GIVEN["hint_seconds"]  # announcements of versions to the one process of all actors
    assert actor_cpu_seconds(one, EVEN, GIVEN) == pytest.approx(begun + 80 * acted + received)
    learned = EVEN.update + 8 * 8 * 64 * EVEN.update_row
    taken = 8 * (EVEN.take + GIVEN["hint_seconds"])
    assert learner_cpu_seconds(one, SIZES, EVEN, GIVEN) == pytest.approx(10 * (learned + taken) + read)


def test_actors_of_a_process_share_listings_and_polls():
    """With 1,000 actors in ten processes, three of eight actors list; each process polls as one waiter."""
    waits = StageSeconds(stage=0.0, snapshot_wait=1.0, shard_wait=0.0)
    many = replace(FOUR, actors=1_000, actors_per_node=1_000, processes_per_node=10)
    found = store_requests(many, SIZES, waits)["list"]
    assert found == pytest.approx(2 * 1_000 * 3 / 8 + 1 + 1 + 10 * 10 * 1.75)
    alone = store_requests(replace(many, processes_per_node=1_000), SIZES, waits)["list"]
    assert alone == pytest.approx(2 * 1_000 + 1 + 1 + 10 * 1_000 * expected_polls(1.0, 1_000))


@pytest.mark.parametrize(
    ("seconds", "count"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (1.75, 2.5), (3.75, 3.5), (23.75, 13.5)]
)
def test_the_poll_interval_of_a_waiter_grows(seconds: float, count: float):
    """Intervals are 0.25 s, 0.5 s, 1 s, and then 2 s; at each poll, half of the waiters still wait."""
    assert expected_polls(seconds, 62) == pytest.approx(count)


@pytest.mark.parametrize("members", [1, 62, 500, 2000, 10_000, 100_000])
def test_the_total_poll_rate_is_bounded(members: int):
    """All processes of a role together poll at most 250 times a second; each polls more than once if it must."""
    waited = 4 * max(2.0, members / 250)
    assert 2 < expected_polls(waited, members) <= 250 * waited / members


def test_bytes_of_a_stage():
    """A stage writes shards and states of eight tiles, versions, a checkpoint and a commit; three nodes read."""
    assert written_bytes(FOUR, SIZES) == 80 * 51_000 + 10 * 5000 + 15_000 + commit_bytes(FOUR)
    found = 3 * commit_bytes(FOUR) + 15_000 + 4 * 1000 + 10 * (8 * 50_000 + 2 * 5000)
    assert read_bytes(FOUR, SIZES) == found


def test_differences_are_written_as_well_and_read_instead():
    """One more object a round is stored; each node reads 1,500 bytes of a version in place of 5,000."""
    more = replace(SIZES, difference_bytes=1500)
    waits = StageSeconds(10.0, 1.0, 0.3)
    plain, asked = store_requests(FOUR, SIZES, waits), store_requests(FOUR, more, waits)
    assert asked == {**plain, "put": plain["put"] + 10}
    assert written_bytes(FOUR, more) - written_bytes(FOUR, SIZES) == 10 * 1500
    assert read_bytes(FOUR, SIZES) - read_bytes(FOUR, more) == 10 * 2 * (5000 - 1500)
    folder = replace(FOUR, client=None)
    assert predict(folder, more, EVEN, GIVEN) == predict(folder, SIZES, EVEN, GIVEN)
    slow = GIVEN | {"store_bits_per_second": 1e4}
    assert (
        predict(FOUR, more, EVEN, slow).parts["snapshot fan-out"]
        < predict(FOUR, SIZES, EVEN, slow).parts["snapshot fan-out"]
    )


def test_scheduler_messages_grow_with_members_and_rounds_not_with_shards():
    """There are 12 messages a stage, two a round, 11 a member, and heartbeats: three processes twice a second.

    Of rounds that follow quickly, ten a second are reported, besides the first and the last one.
    """
    assert scheduler_messages(FOUR, 10.0) == pytest.approx(12 + 2 * 10 + 11 * 5 + 10 * (3 / 0.5 + 1.6))
    assert scheduler_messages(FOUR, 0.5) == pytest.approx(12 + 2 * (2 + 5) + 11 * 5 + 0.5 * (3 / 0.5 + 1.6))
    assert scheduler_messages(replace(FOUR, tiles_per_actor=9), 10.0) == scheduler_messages(FOUR, 10.0)


def test_two_schedulers_announce_nothing_to_each_other():
    """Half of the announcements are left; waiters poll sooner and more often; states stay on their node."""
    two = replace(FOUR, schedulers=2)
    waits = StageSeconds(stage=10.0, snapshot_wait=1.0, shard_wait=8.0)
    one_asks, two_ask = store_requests(FOUR, SIZES, waits), store_requests(two, SIZES, waits)
    assert two.moved_states == 0
    assert one_asks["get"] - two_ask["get"] == FOUR.moved_states
    # Each of two processes polls after 0.05 s, then 0.1, 0.2, 0.4, 0.8; the learner for four missing shards of eight.
    polls = 10 * (2 * (0.5 + 3 + 0.25 / 0.8) + sum(expected_polls(8 / 2**n, 1, far=True) for n in range(1, 5)))
    assert two_ask["list"] == pytest.approx(2 * 4 + 1 + 1 + polls)
    assert {kind: two_ask[kind] for kind in ("put", "head", "delete")} == {
        kind: one_asks[kind] for kind in ("put", "head", "delete")
    }
    assert hints(two) == (hints(FOUR)[0] / 2, hints(FOUR)[1] / 2)
    assert scheduler_messages(two, 0.0) == scheduler_messages(FOUR, 0.0) + 11
    assert replace(FOUR, actors=1, schedulers=2).clusters == 1, "one node has one scheduler"


@pytest.mark.parametrize("lag", [0, 1])
def test_a_version_that_is_polled_for_comes_later(lag: int):
    """A round on two schedulers takes at most a poll's interval longer, and never less."""
    one = predict(replace(FOUR, lag=lag), SIZES, EVEN, GIVEN)
    two = predict(replace(FOUR, lag=lag, schedulers=2), SIZES, EVEN, GIVEN)
    assert 0 < two.round_seconds - one.round_seconds < 2.0


SLOW = replace(EVEN, step=0.1, step_cpu=1e-6, infer=1e-6, update=1e-6, update_row=0.0)
FREE = {name: 1e-9 if name.endswith("_seconds") else value for name, value in GIVEN.items()}


def test_actors_with_waiting_environments_run_concurrently():
    """Throughput grows with the number of actors whose environments wait; a round takes one actor's time."""
    found = predict(FOUR, SIZES, SLOW, FREE)
    own = 2 * (64 * (0.1 + 1e-6) + EVEN.write)
    assert found.round_seconds == pytest.approx(own + 1e-6 + 8 * EVEN.take, rel=1e-3)
    assert found.bottleneck == "stepping"
    more = predict(replace(FOUR, actors=16), SIZES, SLOW, FREE)
    assert more.steps_per_second / found.steps_per_second == pytest.approx(4.0, rel=0.01)


def test_a_stage_begins_with_acting_and_ends_with_learning():
    """With a lag, rounds take as long as acting, and a stage also as long as the last of them is learned and read."""
    even = replace(SLOW, update=5.0)
    found = predict(replace(FOUR, lag=1, rounds_per_stage=3), SIZES, even, FREE)
    own, learned = 2 * (64 * (0.1 + 1e-6) + EVEN.write) + EVEN.fetch, 5.0 + 8 * EVEN.take
    assert found.stage_seconds == pytest.approx(3 * own + learned, rel=1e-3)


def test_processors_and_processes_are_shared():
    """With 64 actors on a node, eight share each of eight cores; in two processes, 32 share an interpreter."""
    busy = replace(EVEN, step=1e-3, step_cpu=1e-3, write=1e-9, update=1e-9, update_row=1e-12)
    many = replace(FOUR, actors=128, actors_per_node=64, processes_per_node=64)
    parts = predict(many, SIZES, busy, FREE).parts
    assert parts["stepping"] == pytest.approx(10 * 2 * 64 * 8 * 1e-3)
    assert parts["inference"] == pytest.approx(10 * 2 * 64 * 8 * 1e-4)
    locked = predict(replace(many, processes_per_node=2), SIZES, replace(busy, step_cpu=1e-6), FREE).parts
    assert locked["inference"] == pytest.approx(10 * 2 * 64 * 32 * 1e-4)


def test_busy_cores_slow_each_other():
    """Cores that are half as fast while all are busy need twice the time; a single one is slowed by none."""
    busy = replace(EVEN, step=1e-3, step_cpu=1e-3, write=1e-9, update=1e-9, update_row=1e-12)
    many, slowed = replace(FOUR, actors=128, actors_per_node=64), replace(busy, busy_core_speed=0.5)
    wide = replace(many, processes_per_node=64)
    assert predict(wide, SIZES, slowed, FREE).parts["stepping"] == pytest.approx(
        2 * predict(wide, SIZES, busy, FREE).parts["stepping"]
    )
    single = FREE | {"cores_per_node": 1.0}
    assert predict(wide, SIZES, slowed, single).stage_seconds == predict(wide, SIZES, busy, single).stage_seconds


@pytest.mark.parametrize(
    ("change", "slow", "expected"),
    [
        ({}, {"infer": 1.0}, "inference"),
        ({}, {"update_row": 1.0}, "learner"),
        ({}, {"take": 10.0}, "learner input"),
        ({}, {"write": 100.0}, "shard writing"),
        ({}, {"fetch": 100.0}, "snapshot reading"),
        ({"member_seconds": 1e3}, {}, "scheduler"),
        ({"writes_per_second": 1e-3}, {}, "object store requests"),
        ({"node_bits_per_second": 1.0}, {}, "bandwidth"),
        ({"commit_ref_seconds": 1e3}, {}, "commit"),
        ({"request_seconds": 1e3}, {}, "snapshot fan-out"),
        ({"prefect_call_seconds": 1e4}, {}, "Prefect"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_slowest_part_is_the_first_bottleneck(change: dict[str, float], slow: dict[str, float], expected: str):
    """The slowed part is named, at both lags, and has a remedy."""
    wide = replace(FOUR, rounds_per_stage=100)
    for lag in (0, 1):
        found = predict(replace(wide, lag=lag), SIZES, replace(EVEN, **slow), GIVEN | change)
        assert found.bottleneck == expected
        assert REMEDIES[expected]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("client", ["s3", "s3+obstore", None])
def test_more_actors_need_more_of_everything(lag: int, client: str | None):
    """No stage gets shorter, has fewer requests, moves fewer bytes or is cheaper; overlap is never slower."""
    before, before_money = None, 0.0
    for actors in (1, 2, 8, 9, 64, 512, 10_000):
        deployment = replace(FOUR, actors=actors, lag=lag, client=client)
        found = predict(deployment, SIZES, EVEN, GIVEN)
        money = cost(found, SIZES, GIVEN).hour * found.stage_seconds
        if before:
            assert found.stage_seconds >= before.stage_seconds
            assert sum(found.requests.values()) >= sum(before.requests.values())
            assert found.written_bytes > before.written_bytes
            assert found.messages > before.messages
            assert money > before_money
        before, before_money = found, money
        assert predict(replace(deployment, lag=1), SIZES, EVEN, GIVEN).round_seconds <= found.round_seconds


def test_costs_are_prices_times_amounts():
    """Machines are priced by the hour, requests by kind, bytes by the month; deletions are free."""
    prices = GIVEN | {
        "cores_per_node": 2.0, "learner_cores": 4.0, "control_cores": 2.0, "vcpu_hour_price": 0.5,
        "gpu_hour_price": 3.0, "write_request_price": 1e-3,
        "read_request_price": 1e-4, "gigabyte_month_price": 0.1, "kept_months": 2.0,
    }  # fmt: skip
    found = predict(replace(FOUR, gpu=True), SIZES, EVEN, prices)
    money, stages = cost(found, SIZES, prices), 3600.0 / found.stage_seconds
    assert money.machines == pytest.approx(0.5 * (2 * 2 + 4 + 2) + 3.0)
    asked = found.requests
    assert money.requests == pytest.approx(
        stages * (1e-3 * (asked["put"] + asked["list"]) + 1e-4 * (asked["get"] + asked["head"]))
    )
    assert money.storage == pytest.approx(stages * (80 * 50_000 + commit_bytes(FOUR)) / 1e9 * 0.1 * 2)
    assert money.million_steps == pytest.approx(money.hour * 1e6 / (3600 * found.steps_per_second))


def test_every_constant_has_a_unit_a_meaning_and_a_source():
    """A value that is given by --assume is distinguished from a measured one."""
    for constant in constants().values():
        assert constant.value > 0
        assert constant.unit
        assert constant.meaning
        assert constant.source.startswith(("measured 20", "assumed")), constant
    changed = with_assumptions(["vcpu-hour-price=0.1"])["vcpu_hour_price"]
    assert (changed.value, changed.source) == (0.1, "given by --assume")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vcpu_hour=1", "did you mean vcpu_hour_price"),
        ("nonsense", "there are: cores_per_node"),
        ("kept_months=", "expected a number above 0"),
        ("kept_months=-1", "found '-1'"),
        ("kept_months=nan", "found 'nan'"),
    ],
)
def test_invalid_assumptions_are_refused(text: str, said: str):
    """Unknown names, and values that are no numbers above 0, are refused with the expectation."""
    with pytest.raises(ConfigError, match="--assume") as caught:
        with_assumptions([text])
    assert said in str(caught.value)
