"""A served policy answers over HTTP what it would answer in the process, and refuses what it can't use."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import date
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import uvicorn

from penstock.tasks.inference.batching import MicroBatcher
from penstock.tasks.inference.http_server import ARROW, PolicyServer
from penstock.tasks.inference.loading import load_newer
from penstock.tasks.inference.policy import Policy
from penstock.tasks.runtime.run_context import RunContext

from ..conftest import MakeContext
from .conftest import KINDS
from .support import as_stored, commit, policy_of
from .test_policy import played


@contextlib.contextmanager
def serving(policy_server: PolicyServer) -> Iterator[httpx.Client]:
    """Run a server on loopback, in a thread; yield a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(policy_server.app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=150.0) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def client(make_context: MakeContext) -> Iterator[httpx.Client]:
    """Serve CartPole's policy."""
    with serving(PolicyServer(policy_of(make_context()))) as client:
        yield client


def stream(options: pa.ipc.IpcWriteOptions | None = None, /, **columns: pa.Array) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def flat(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), int(np.prod(values.shape[1:])))


def test_json_and_arrow_give_the_policys_actions(kind_context: RunContext):
    """For a batch and for one observation, with the memory going out and in."""
    policy = policy_of(kind_context)
    with serving(PolicyServer(policy_of_same(kind_context))) as client:
        in_json: dict[str, Any] = {}
        in_arrow: dict[str, pa.Array] = {}
        pairs = list(played(kind_context, policy))[:3]
        state = None
        for observation, _ in pairs:
            own, state = policy.predict(observation, state, deterministic=True)
            expected = as_stored(policy, own)
            sent = {"observation": observation.tolist(), **in_json}
            answer = client.post("/act", json=sent).raise_for_status().json()
            np.testing.assert_allclose(as_stored(policy, answer["action"]), expected, rtol=1e-5, atol=1e-5)
            assert answer["version"] == 1
            in_json = {"memory": answer["memory"]} if policy.has_memory else {}
            body = stream(observation=flat(observation), **in_arrow)
            response = client.post("/act", content=body, headers={"content-type": ARROW}).raise_for_status()
            table = pa.ipc.open_stream(response.content).read_all()
            column = table["action"].combine_chunks()
            found = (column.flatten() if pa.types.is_nested(column.type) else column).to_numpy()
            np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)
            in_arrow = {"memory": table["memory"].combine_chunks()} if policy.has_memory else {}
        one = client.post("/act", json={"observation": pairs[0][0][0].tolist()}).raise_for_status().json()
        policy.reset()
        alone = as_stored(policy, policy.act(pairs[0][0][0]))
        np.testing.assert_allclose(as_stored(policy, one["action"]), alone, rtol=1e-5, atol=1e-5)
        assert as_stored(policy, one["action"]).shape == alone.shape


def policy_of_same(context: RunContext) -> Policy:
    from penstock.tasks.inference.loading import load_policy

    return load_policy(context.run.name, store=context.run.root.url)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b"[1]", 422, "expected an object with 'observation'"),
        (b'{"obs": [1, 2, 3, 4]}', 422, "unknown: obs; expected 'observation'"),
        (b"{}", 422, "no 'observation'"),
        (b'{"observation": [1, 2]}', 422, r"shape (2,); CartPole-v1 has (4,)"),
        (b'{"observation": [[1, 2, 3, 4], [1, 2]]}', 422, "rows that differ in shape"),
        (b'{"observation": ["a", "b", "c", "d"]}', 422, "dtype <U1; CartPole-v1 has float32"),
        (b'{"observation": {"x": 1}}', 422, "shape ()"),
        (b'{"observation": [1, 2, 3, 1e39]}', 422, "its dtype, float32, can't hold"),
        (b'{"observation": [1, 2, 3, 4], "memory": [0]}', 422, "the policy has none"),
        (b'{"observation": [1, 2, 3, 4], "deterministic": 1}', 422, "expected true or false"),
        (b'{"observation": [null, 2, 3, 4]}', 422, "dtype object"),
    ],
)
def test_invalid_requests_get_a_4xx_that_says_what_was_expected(
    client: httpx.Client, body: bytes, status: int, said: str
):
    """None of them stops the server."""
    response = client.post("/act", content=body)
    assert response.status_code == status, response.text
    assert said in response.json()["error"]
    assert client.post("/act", json={"observation": [0, 0, 0, 0]}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"no stream",
        stream(other=pa.array([1.0])),
        stream(observation=pa.array([[1.0, 2.0]])),
        stream(observation=pa.array([[1.0, 2.0, 3.0, None]])),
        stream(observation=pa.array(["text"])),
        stream(observation=pa.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0, 8.0]])),
        stream(observation=pa.array([[1.0] * 8, []], pa.list_(pa.float32()))),
        stream(observation=pa.array([{"x": 1.0}])),
        stream(observation=flat(np.zeros((1, 4))), memory=pa.array([[0.0]])),
        stream(observation=flat(np.zeros((64, 4))))[:-900],
        stream(observation=pa.array([[[1.0, 2.0], [3.0, 4.0]]])),
    ],
    ids=["bytes", "column", "width", "null", "text", "ragged", "empty", "struct", "unknown", "cut", "nested"],
)
def test_invalid_arrow_is_refused(client: httpx.Client, body: bytes):
    """As invalid JSON is."""
    response = client.post("/act", content=body, headers={"content-type": ARROW})
    assert response.status_code == 422
    assert "expected" in response.json()["error"] or "nulls" in response.json()["error"]


def test_arrows_own_types_of_a_row_are_taken(client: httpx.Client):
    """Lists of any width of offset, and the tensors that a shard's own observations are; so is any case of the type."""
    rows = np.linspace(-0.1, 0.1, 8, dtype=np.float32).reshape(2, 4)
    expected = client.post("/act", json={"observation": rows.tolist()}).json()["action"]
    columns = (
        flat(rows),
        pa.array(rows.tolist(), pa.large_list(pa.float32())),
        pa.FixedShapeTensorArray.from_numpy_ndarray(rows),
    )
    for column in columns:
        response = client.post("/act", content=stream(observation=column), headers={"content-type": ARROW.upper()})
        assert pa.ipc.open_stream(response.raise_for_status().content).read_all()["action"].to_pylist() == expected


def test_numbers_that_are_not_finite_are_refused_by_their_row(client: httpx.Client):
    """JSON has none; of an Arrow stream the first one is named."""
    rows = np.zeros((3, 4), np.float32)
    rows[2, 1] = np.nan
    response = client.post("/act", content=stream(observation=flat(rows)), headers={"content-type": ARROW})
    assert response.status_code == 422
    assert "an observation with nan (row 2, place [1]), expected finite numbers" in response.json()["error"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_are_refused(client: httpx.Client, compression: str):
    """The limit of a request counts what is sent: 3 kB could be 700 MB of zeros. It is refused before it is read."""
    body = stream(pa.ipc.IpcWriteOptions(compression=compression), observation=flat(np.zeros((4096, 4))))
    response = client.post("/act", content=body, headers={"content-type": ARROW})
    assert response.status_code == 422
    assert "its batches are compressed; send them as they are" in response.json()["error"]


MANY_ROWS = (1 << 31) - 1
NO_NUMBERS = pa.Array.from_buffers(pa.list_(pa.float32(), 0), MANY_ROWS, [None], children=[pa.array([], pa.float32())])
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([MANY_ROWS], pa.int32()), pa.array([1.0]))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([1.0, 1.0]).dictionary_encode(), "it has a dictionary; send numbers"),
        (pa.Array.from_buffers(pa.null(), MANY_ROWS, [None]), "nulls"),
        (NO_NUMBERS, "rows of 0 numbers"),
        (RUNS, "has the type run_end_encoded"),
        (pa.array([date(2026, 1, 1)]), "has the type date32"),
    ],
    ids=["dictionary", "nulls", "no numbers", "runs", "dates"],
)
def test_columns_that_grow_when_they_are_read_are_refused(client: httpx.Client, column: pa.Array, said: str):
    """A few bytes may stand for a billion rows."""
    response = client.post("/act", content=stream(observation=column), headers={"content-type": ARROW})
    assert response.status_code == 422
    assert said in response.json()["error"]


def test_a_column_that_is_there_twice_is_refused(client: httpx.Client):
    """No rule says which of them is meant."""
    table = pa.table([flat(np.zeros((1, 4)))] * 2, names=["observation", "observation"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    response = client.post("/act", content=sink.getvalue().to_pybytes(), headers={"content-type": ARROW})
    assert response.status_code == 422
    assert "there is more than one column 'observation'" in response.json()["error"]


def test_a_memory_of_another_shape_is_refused(make_context: MakeContext):
    """It says the shape that was returned before."""
    with serving(PolicyServer(policy_of(make_context(KINDS["recurrent"])))) as client:
        response = client.post("/act", json={"observation": [0, 0, 0, 0], "memory": [[1.0]]})
        assert response.status_code == 422
        assert "expected finite numbers of shape (1, 2, 8)" in response.json()["error"]


def test_rows_that_allow_no_action_are_refused_alone(make_context: MakeContext):
    """The request of others in the same batch is answered."""
    policy = policy_of(make_context(KINDS["masked"]))
    stuck = np.zeros((1, *policy.environment.observation.shape), policy.environment.observation.dtype)
    free = stuck.copy()
    free[:, : policy.environment.action.n] = 1

    async def both() -> list[Any]:
        async with MicroBatcher(policy, 64) as batcher:
            asked = [batcher.act(rows, None, deterministic=True) for rows in (free, stuck, free)]
            return await asyncio.gather(*asked, return_exceptions=True)

    first, refused, last = asyncio.run(both())
    assert isinstance(refused, ValueError)
    assert "allows none" in str(refused)
    np.testing.assert_array_equal(first.actions, last.actions)


def test_concurrent_requests_share_batches_and_get_their_own_rows(make_context: MakeContext):
    """Each gets the actions of its observations, whatever else was in the batch; large ones are batches alone."""
    policy = policy_of(make_context())
    rng = np.random.default_rng(0)
    sizes, batches = [1, 3, 40, 2, 7, 100, 1, 5] * 10, []
    asked = [rng.normal(size=(size, 4)).astype(np.float32) for size in sizes]

    async def answers() -> list[Any]:
        async with MicroBatcher(policy, 64, batches.append) as batcher:
            return await asyncio.gather(*(batcher.act(rows, None, deterministic=True) for rows in asked))

    for rows, answer in zip(asked, asyncio.run(answers()), strict=True):
        np.testing.assert_array_equal(answer.actions, policy.act(rows))
    assert sum(batches) == sum(sizes)
    assert len(batches) < len(sizes)
    assert {count for count in batches if count > 64} == {100}


def test_it_follows_training(make_context: MakeContext):
    """A new version acts once it is committed; an unreadable store leaves the version that acts."""
    context = make_context()
    server = PolicyServer(policy_of(context), load_newer, poll_seconds=0.05)
    with serving(server) as client:
        assert client.get("/health").json()["version"] == 1
        run_json = context.run.store.read("run.json")
        context.run.store.delete(["run.json"])
        wait(lambda: b"failed_polls_total 0.0" not in client.get("/metrics").content)
        assert client.post("/act", json={"observation": [0, 0, 0, 0]}).json()["version"] == 1
        context.run.store.write("run.json", [run_json])
        commit(context, None, None, first=1)
        wait(lambda: client.get("/health").json()["version"] == 3)
        assert client.post("/act", json={"observation": [0, 0, 0, 0]}).json()["version"] == 3
        assert b"penstock_policy_version 3.0" in client.get("/metrics").content


def test_it_follows_on_after_any_error(make_context: MakeContext):
    """A library of a store may raise what it likes: the version that acts goes on, and so does the polling."""
    policy, newer = policy_of(make_context()), policy_of(make_context(name="newer"))
    found: list[Policy | Exception] = [RuntimeError("of the library"), KeyError("credentials"), newer]

    def poll(_: Policy) -> Policy | None:
        one = found.pop(0) if found else None
        if isinstance(one, Exception):
            raise one
        return one

    with serving(PolicyServer(policy, poll, poll_seconds=0.05)) as client:
        wait(lambda: client.get("/health").json()["run"] == "newer")
        assert b"penstock_policy_failed_polls_total 2.0" in client.get("/metrics").content


def runs_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_large_requests_are_read_beside_the_event_loop(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch):
    """Other clients would wait for the seconds that it takes; a small one is read where it came."""
    policy = policy_of(make_context())
    read_in_loop: list[bool] = []
    as_rows = policy.as_rows

    def noted(observation: Any) -> Any:
        read_in_loop.append(runs_in_event_loop())
        return as_rows(observation)

    monkeypatch.setattr(policy, "as_rows", noted)
    with serving(PolicyServer(policy)) as client:
        few = client.post("/act", json={"observation": [[0.0] * 4] * 2}).raise_for_status().json()
        many = client.post("/act", json={"observation": [[0.0] * 4] * 5000}).raise_for_status().json()
    assert read_in_loop == [True, False]
    assert many["action"] == few["action"][:1] * 5000


def test_a_client_that_leaves_is_counted_and_no_error(client: httpx.Client):
    """Its request ends in mid-body; others are answered."""
    address = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(address) as leaving:
        leaving.sendall(b"POST /act HTTP/1.1\r\nHost: penstock\r\nContent-Length: 100\r\n\r\n{")
    wait(lambda: b'penstock_policy_requests_total{status="499"} 1.0' in client.get("/metrics").content)
    assert client.post("/act", json={"observation": [0, 0, 0, 0]}).status_code == 200


def wait(holds: Any) -> None:
    for _ in range(1500):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in 150 s")


def test_it_describes_itself_and_counts(client: httpx.Client):
    """Health, metrics and the inputs that it expects; many clients at once."""
    described = client.get("/policy").json()
    assert described["inputs"] == [{"name": "observation", "dtype": "float32", "shape": ["B", 4]}]
    assert [each["name"] for each in described["outputs"]] == ["action"]
    threads = [
        threading.Thread(target=client.post, args=("/act",), kwargs={"json": {"observation": [0, 0, 0, 0]}})
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 'penstock_policy_requests_total{status="200"} 8.0' in client.get("/metrics").text
    assert client.get("/act").status_code == 405
    assert json.loads(client.get("/health").content)["status"] == "ok"
