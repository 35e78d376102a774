"""`penstock scale` refuses bad input, prints its sources, and predicts a real run's requests and messages."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.flows.support.capacity_table import deployment_of, scale
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import build_config, load_preset
from penstock.tasks.setup.planning.operation_counts import StageSeconds, scheduler_messages, store_requests

from ...tasks.setup.planning.test_auto_policy import SIZES
from ..conftest import Settings

if TYPE_CHECKING:
    from ...support.processes.commands import Cluster

SETTINGS = Settings(stages=3, rounds=4, tiles=4, act_tasks=2)
# The messages of one evaluation at the scheduler: graph, start, end, result, fetch and release.
EVALUATION_MESSAGES = 7
# The flow's client connects, subscribes to two of Dask's topics, and disconnects.
CLIENT_MESSAGES = 4
PERIODIC = {"log-event", "event", "heartbeat-client", "adjust-heartbeat-interval", "keep-alive", "long-running"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"actors": "0"}, "--actors 0: expected numbers from 1"),
        ({"actors": "1,,8"}, "as in --actors 1,8,64"),
        ({"actors": "many"}, "--actors many"),
        ({"actors": "8", "learners": 0}, "--learners 0"),
        ({"actors": "8", "actors_per_node": 0}, "--actors-per-node 0"),
        ({"actors": "8", "schedulers": 0}, "--schedulers 0"),
        ({"actors": "8", "hours": 0.0}, "--hours 0: expected a number above 0"),
        ({"actors": "8", "assumed": ["vcpu_hour=1"]}, "did you mean vcpu_hour_price"),
    ],
)
def test_bad_arguments_are_refused_before_any_trial(options: dict[str, Any], said: str):
    """The error names the argument and what is expected."""
    with pytest.raises(ConfigError) as caught:
        scale(build_config({}), **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"distribution": {"policy": "multiple_learners"}}, "single_learner_coarse alone"),
        ({"distribution": {"quorum": 0.5}}, "distribution.quorum = 0.5"),
        (
            {"environment": {"num_envs": 192}, "distribution": {"act_tasks": 2}},
            "3 tiles for distribution.act_tasks = 2",
        ),
    ],
)
def test_settings_outside_the_model_are_refused(settings: dict[str, Any], said: str):
    """Other policies, a quorum, and actors with unequal numbers of tiles are refused."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        scale(build_config(settings), "8")


@pytest.mark.slow
def test_the_command_prints_rows_constants_and_measurements(bench):
    """Stdout has JSON alone: one row per number of actors, each with its parts, and a source for every number."""
    small = bench.preset(Settings())
    command = bench.penstock(
        "scale",
        small,
        "--actors",
        "1,10000",
        "--lag",
        "1",
        "--json",
        "--assume",
        "kept_months=3",
        "--assume",
        "update=2",
        "--enough-learners",
        "--hours",
        "8.6",
    )
    found = json.loads(command.succeed())
    assert [row["actors"] for row in found["rows"]] == [1, 10_000]
    for row in found["rows"]:
        assert row["parts"][row["first bottleneck"]] == max(row["parts"].values())
        assert row["env steps/s"] > 0
    assert found["rows"][0]["hours"] == pytest.approx(8.6)
    assert {"learner", "bandwidth"} < {row["part"] for row in found["limits"]}
    assert {row["name"]: row["source"] for row in found["constants"]}["kept_months"] == "given by --assume"
    assert {row["name"]: row["value"] for row in found["measured"]}["update"] == 2.0
    assert found["rows"][0]["parts"]["learner"] >= Settings().rounds * 2.0
    assert all(row["source"] for row in (*found["constants"], *found["measured"]))


@pytest.mark.slow
def test_a_run_makes_the_predicted_requests_and_messages(bench, cluster, s3_server, s3_url: str):
    """Writes, removals and reads on a real S3 server, and messages of a real scheduler, are equal to the prediction.

    Excluded is what depends on time: the lease, polls, heartbeats, reports of rounds, and the batches of results.
    """
    store = s3_url.replace("/runs", "/capacity")
    asked_before = s3_server.log.stat().st_size
    _count_messages(cluster)
    # The node's own cache may have a commit already: the same run gives the same bytes, whenever it is.
    bench.train("counted", SETTINGS, "--cache-folder", str(bench.folder / "cache"), store=store).succeed()
    messages, reports = _counted_messages(cluster, "counted")
    preset = build_config(load_preset(bench.preset(SETTINGS)))
    config = preset.model_copy(update={"store": store})
    cluster_of = deployment_of(config, actors=2, learners=1, actors_per_node=2)
    predicted = store_requests(cluster_of, SIZES, StageSeconds(0.0, 0.0, 0.0))
    with s3_server.log.open("rb") as log:
        log.seek(asked_before)
        asked = _requests(log.read().decode(), "/capacity/counted/")
    stages, members, polls = SETTINGS.stages, cluster_of.members, cluster_of.processes
    # Version 0 comes first; where nothing is before the first stage, nothing of it is read.
    assert asked["PUT"] == stages * predicted["put"] + 1
    assert asked["POST"] == stages * predicted["delete"] + 1  # one probe, before anything is started
    before_first = cluster_of.caches + cluster_of.learners
    assert asked["GET"] == stages * (predicted["get"] - polls) - before_first
    assert 2 * stages <= reports <= SETTINGS.rounds * stages
    calls_and_batches, first_and_last = 6 + members, 2 * 2
    once = scheduler_messages(cluster_of, 0.0) - calls_and_batches - first_and_last
    assert messages.total() == stages * (once + EVALUATION_MESSAGES) + CLIENT_MESSAGES, messages


def _requests(log: str, folder: str) -> Counter[str]:
    """Count a run's requests by method, without those that depend on time; removals name no object."""
    found = Counter[str]()
    for method, path in re.findall(r'"(GET|PUT|POST) (\S+) HTTP', log):
        name = path.partition("?")[0]
        if (
            method == "POST"
            or (folder in name and not name.endswith(("lease.json", "run.json", "latest.json")))
            or (folder in name and name.endswith("latest.json") and method == "PUT")
        ):
            found[method] += 1
    return found


def _count_messages(cluster: Cluster) -> None:
    """Let the scheduler count what streams in and out."""

    def begin(dask_scheduler: Any) -> None:
        from distributed.batched import BatchedSend

        seen: list[str] = []

        class CountingHandlers(dict[str, Any]):
            def __getitem__(self, operation: str) -> Any:
                seen.append(operation)
                return super().__getitem__(operation)

        original, handlers = BatchedSend.send, dask_scheduler.stream_handlers

        def send(self: Any, *messages: Any) -> None:
            if self in (*dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values()):
                seen.extend(message["op"] for message in messages)
            original(self, *messages)

        published: list[tuple[Any, Any]] = []
        broker = dask_scheduler._broker
        publish = broker.publish

        def record(topics: Any, event: Any) -> None:
            published.append((topics, event))
            publish(topics, event)

        broker.publish = record  # runs make the scheduler forget their topics
        BatchedSend.send, dask_scheduler.stream_handlers = send, CountingHandlers(handlers)
        dask_scheduler.counted_for_capacity = (seen, published, original, handlers)

    cluster.members.client.run_on_scheduler(begin)


def _counted_messages(cluster: Cluster, run: str) -> tuple[Counter[str], int]:
    """Count a run's messages, in and out, by operation; a report that a slow gang repeated counts once.

    Returns:
        The messages, without reports of rounds, and the number of these.
    """

    def end(dask_scheduler: Any, run: str) -> tuple[list[str], list[str], int]:
        from distributed.batched import BatchedSend

        seen, published, BatchedSend.send, dask_scheduler.stream_handlers = dask_scheduler.counted_for_capacity
        del dask_scheduler._broker.publish
        own = [(topic, event) for topic, event in published if str(topic).startswith(f"penstock/{run}/")]
        rounds = [event for _, event in own if event.get("event") == "progress"]
        others = [str({**event, "topic": topic}) for topic, event in own if event.get("event") != "progress"]
        return seen, others, len(rounds)

    seen, events, reports = cluster.members.client.run_on_scheduler(end, run=run)
    found = Counter(operation for operation in seen if operation not in PERIODIC)
    found["events"] = 2 * len(set(events))
    return found, reports
