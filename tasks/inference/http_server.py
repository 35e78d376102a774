"""Answers HTTP requests with a policy's actions, in JSON or Arrow, and follows new versions while training goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import struct
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.storage.shards.arrow_frame import is_compressed_batch
from penstock.tasks.inference.batching import Answer, MicroBatcher
from penstock.tasks.inference.export import describe_program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from numpy.typing import NDArray
    from starlette.requests import Request

    from penstock.tasks.inference.policy import Policy

T = TypeVar("T")

ARROW = "application/vnd.apache.arrow.stream"
_MOST_BYTES = 64 << 20
_LARGE_BYTES = 64 << 10
"""Reading takes some two milliseconds for this many bytes of JSON, and some three seconds for `_MOST_BYTES`."""
_CLIENT_LEFT = 499
"""The status that nginx counts where a client closes its connection before it has the answer."""
_LATENCIES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_log = logging.getLogger(__name__)


class _Refused(Exception):  # noqa: N818  (an answer, not a failure)
    """An invalid request, with the status of its answer."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class PolicyServer:
    """A policy behind HTTP: `app` is an ASGI application.

    `POST /act` takes `{"observation": [...], "deterministic": true, "memory": [...]}`, for one observation or a batch,
    and returns `{"action": ..., "version": n}`, with `"memory"` if the policy has one. With the content type of Arrow
    streams it takes and returns the columns `observation`, `memory` and `action`, one flat list a row. A structured
    action is in JSON what the environment takes, and in Arrow the vector of its leaves. `GET /policy` describes inputs
    and outputs, `GET /health` and `GET /metrics` (Prometheus) are for those who watch it.

    Args:
        policy: the first policy.
        newer: called every `poll_seconds` with the current one; returns a newer policy or None. None follows nothing.
        poll_seconds: interval of polling for a new version.
        max_rows: most rows of a batch.
    """

    def __init__(
        self,
        policy: Policy,
        newer: Callable[[Policy], Policy | None] | None = None,
        *,
        poll_seconds: float = 5.0,
        max_rows: int = 256,
    ) -> None:
        self._newer, self._poll_seconds = newer, poll_seconds
        self._registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter("penstock_policy_requests", "Requests by status.", ["status"], **options)
        self._seconds = Histogram(
            "penstock_policy_request_seconds", "Seconds of requests that were answered.", buckets=_LATENCIES, **options
        )
        self._rows = Histogram("penstock_policy_batch_rows", "Rows of a batch.", buckets=_ROWS, **options)
        self._version = Gauge("penstock_policy_version", "Version of the snapshot that acts.", **options)
        self._failed_polls = Counter("penstock_policy_failed_polls", "Failed polls for a new version.", **options)
        self._version.set(policy.origin.version)
        self._batcher = MicroBatcher(policy, max_rows, self._rows.observe)
        routes = [
            Route("/act", self._act, methods=["POST"]),
            Route("/policy", self._describe),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]
        self.app = Starlette(routes=routes, lifespan=self._lifespan)

    @property
    def policy(self) -> Policy:
        """Return the policy that acts now."""
        return self._batcher.policy

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._batcher:
            follower = asyncio.create_task(self._follow())
            try:
                yield
            finally:
                follower.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await follower

    async def _follow(self) -> None:
        while self._newer is not None:
            await asyncio.sleep(self._poll_seconds)
            try:
                found = await asyncio.to_thread(self._newer, self.policy)
            except Exception as error:  # noqa: BLE001  (libraries of stores have errors of their own)
                # The current version keeps acting: a store may be unreachable for a while.
                self._failed_polls.inc()
                _log.warning("polling for a new version failed: %s: %s", type(error).__name__, error)
                continue
            if found is not None:
                self._batcher.policy = found
                self._version.set(found.origin.version)
                _log.info("version %d acts now", found.origin.version)

    async def _act(self, request: Request) -> Response:
        started = time.perf_counter()
        try:
            policy = self.policy
            is_arrow = request.headers.get("content-type", "").split(";")[0].strip().lower() == ARROW
            body = await _body(request)
            parameter = request.query_params.get("deterministic")
            asked = await _beside(len(body), partial(_read, policy, body, parameter, is_arrow=is_arrow))
            answer = await self._answer(asked)
            encode = partial(_as_arrow, answer) if is_arrow else partial(_as_json, policy, answer, asked.single)
            response = await _beside(len(body), encode)
        except _Refused as refused:
            response = JSONResponse({"error": str(refused)}, refused.status)
        except ClientDisconnect:
            self._requests.labels(status=str(_CLIENT_LEFT)).inc()
            return Response(status_code=_CLIENT_LEFT)  # nobody reads it
        except Exception:
            self._requests.labels(status="500").inc()
            raise
        self._requests.labels(status=str(response.status_code)).inc()
        self._seconds.observe(time.perf_counter() - started)
        return response

    async def _answer(self, asked: _Asked) -> Answer:
        try:
            return await self._batcher.act(asked.rows, asked.memory, deterministic=asked.deterministic)
        except (ValueError, TypeError, OverflowError) as error:
            raise _Refused(422, str(error)) from error

    async def _describe(self, _: Request) -> Response:
        described = describe_program(self.policy)
        # The server draws the noise, and takes the memory that it answers under the same name.
        inputs = [each for each in described["inputs"] if each["name"] != "noise"]
        outputs = [{**each, "name": each["name"].removeprefix("next_")} for each in described["outputs"]]
        return JSONResponse({**described, "inputs": inputs, "outputs": outputs})

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", **asdict(self.policy.origin)})

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")


async def _beside(nbytes: int, work: Callable[[], T]) -> T:
    """Return the result of `work`; for a large request in another thread, so that other clients need not wait."""
    return await asyncio.to_thread(work) if nbytes > _LARGE_BYTES else work()


async def _body(request: Request) -> bytes:
    parts, count = [], 0
    async for part in request.stream():
        parts.append(part)
        count += len(part)
        if count > _MOST_BYTES:
            raise _Refused(413, f"the request has more than {_MOST_BYTES:,} bytes; send smaller batches")
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A valid request asks for the actions of some rows."""

    rows: NDArray[Any]
    """Observations `[n, ...]`."""
    memory: NDArray[np.float32] | None
    deterministic: bool
    single: bool
    """True for one observation without an axis of rows."""


def _read(policy: Policy, body: bytes, parameter: str | None, *, is_arrow: bool) -> _Asked:
    """Read and check a request, whose address may have the parameter `deterministic`."""
    given = _from_arrow(policy, body) if is_arrow else _from_json(body)
    unknown = sorted(set(given) - {"observation", "deterministic", "memory"})
    if unknown or "observation" not in given:
        found = f"unknown: {', '.join(unknown)}" if unknown else "no 'observation'"
        raise _Refused(422, f"{found}; expected 'observation', and optionally 'deterministic' and 'memory'")
    words = {"true": True, "false": False}
    deterministic = given.get("deterministic", words.get(parameter or "true"))
    if not isinstance(deterministic, bool):
        raise _Refused(422, f"deterministic is {given.get('deterministic', parameter)!r}, expected true or false")
    try:
        rows, single = policy.as_rows(given["observation"])
        memory = _memory(policy, given.get("memory"), len(rows), single)
    except (ValueError, TypeError, OverflowError) as error:
        raise _Refused(422, str(error)) from error
    return _Asked(rows, memory, deterministic, single)


def _from_json(body: bytes) -> dict[str, Any]:
    try:
        given = orjson.loads(body)
    except ValueError as error:
        raise _Refused(400, f"the request is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise _Refused(422, f"the request is a {type(given).__name__}, expected an object with 'observation'")
    return given


def _from_arrow(policy: Policy, body: bytes) -> dict[str, Any]:
    spec = policy.environment.observation
    shapes: dict[str, tuple[int, ...]] = {"observation": spec.shape}
    if (memory := policy.initial_memory(1)) is not None:
        shapes["memory"] = memory.shape[1:]
    try:
        _refuse_expanding(body)
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        table.validate(full=True)
        _check_columns(table.column_names, shapes)
        given = {}
        for name in table.column_names:
            given[name] = _numbers(name, table.column(name).combine_chunks(), shapes[name])
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError, struct.error) as error:
        raise _Refused(
            422,
            f"the Arrow stream does not fit: {error}; expected columns of one flat list a row: "
            f"{', '.join(f'{name} with {int(np.prod(shape))} numbers' for name, shape in shapes.items())}; "
            f"?deterministic=false is a parameter of the address",
        ) from error
    return given


def _refuse_expanding(body: bytes) -> None:
    """Refuse a stream that is larger once it is read than as it was sent: the limit of a request counts bytes sent."""
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type == "record batch" and is_compressed_batch(message.metadata):
            raise ValueError("its batches are compressed; send them as they are")
        if message.type not in ("schema", "record batch"):
            raise ValueError(f"it has a {message.type}; send numbers")


def _check_columns(names: list[str], known: Collection[str]) -> None:
    if unknown := sorted(set(names).difference(known)):
        raise ValueError(f"unknown columns: {', '.join(unknown)}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"there is more than one column '{twice[0]}'")


def _numbers(name: str, column: pa.Array, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a column as `[rows, *shape]`: a number a row, a flat list, or a tensor of Arrow's own type."""
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    is_list = is_list or pa.types.is_fixed_size_list(column.type)
    flat, width = column.flatten() if is_list else column, math.prod(shape)
    if column.null_count or flat.null_count:
        raise _Refused(422, f"column '{name}' has nulls")
    is_number = pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)
    if not is_number:
        raise ValueError(f"column '{name}' has the type {column.type}")
    if pa.types.is_fixed_size_list(column.type):  # of no numbers, it may claim any number of rows
        lengths = {column.type.list_size}
    else:
        lengths = set(pc.unique(pc.list_value_length(column)).to_pylist()) if is_list else {1}
    if wrong := lengths - {width}:
        raise ValueError(f"column '{name}' has rows of {min(wrong)} numbers")
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), *shape)


def _memory(policy: Policy, given: Any, rows: int, single: bool) -> NDArray[np.float32] | None:
    if given is None:
        return None
    empty = policy.initial_memory(rows)
    if empty is None:
        raise _Refused(422, "'memory' was sent, and the policy has none; leave it out")
    memory = np.asarray(given, dtype=np.float32)
    memory = memory[None] if single and memory.shape == empty.shape[1:] else memory
    if memory.shape != empty.shape or not np.isfinite(memory).all():
        raise _Refused(
            422, f"memory of shape {memory.shape}, expected finite numbers of shape {empty.shape}, as returned before"
        )
    return memory


def _as_json(policy: Policy, answer: Answer, single: bool) -> Response:
    taken = {"action": answer.actions, **({} if answer.memory is None else {"memory": answer.memory})}
    # Contiguous, as orjson wants; a single choice stays an array without an axis.
    values: dict[str, Any] = {name: np.array(value[0] if single else value, order="C") for name, value in taken.items()}
    if policy.environment.action.kind != "box":
        values["action"] = policy.own_actions(values["action"])
    content = orjson.dumps(
        {**values, "version": answer.version}, option=orjson.OPT_SERIALIZE_NUMPY, default=lambda value: value.tolist()
    )
    return Response(content, media_type="application/json")


def _as_arrow(answer: Answer) -> Response:
    taken = {"action": answer.actions, **({} if answer.memory is None else {"memory": answer.memory})}
    columns = {}
    for name, value in taken.items():
        width = int(np.prod(value.shape[1:]))
        flat = pa.array(np.ascontiguousarray(value).reshape(-1))
        columns[name] = flat if value.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, width)
    table = pa.table(columns).replace_schema_metadata({"version": str(answer.version)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Response(sink.getvalue().to_pybytes(), media_type=ARROW)
