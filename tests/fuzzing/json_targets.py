"""Targets for what runs store as JSON, and for messages between members that are JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import ConfigError, CorruptObjectError
from penstock.storage.records import RecordError
from penstock.storage.runs.commit_schema import Commit, decode_commit, encode_commit
from penstock.storage.runs.continuing.arrival_orders import ArrivalOrder
from penstock.storage.runs.latest import LATEST, Hint, read_hint, write_hint
from penstock.storage.runs.lease import LEASE
from penstock.storage.runs.lease_state import Lease
from penstock.storage.runs.reader_claims import RETENTION, Claim, recorded_claims, shards_kept_from
from penstock.storage.runs.round_choices import Choice
from penstock.storage.runs.run import RUN, RunFolder
from penstock.storage.runs.timings import StageTimings, decode_timings, encode_timings
from penstock.storage.shards.epoch_order import ReaderState
from penstock.tasks.driver.attempts import current_attempt
from penstock.tasks.runtime.events import LogRecord, Preempted, Progress, Reported, decode_event, encode_event
from penstock.tasks.setup.config.consent import local_code
from penstock.tasks.setup.config.replay import build_stored_config

from .mutators import mutate_json
from .target import MemoryStore, Target, golden

LIVING = Lease.of_this_process("a reader", 60.0)
COMMITS = golden("run/commits/00000000.json", "files/log/commits/00000001.json", "replayed/commits/00000000.json")
STAGE = re.compile(rb'"stage": ?(\d{1,9})')
ROUND = re.compile(rb'"round": ?(\d{1,9})')
EVENTS = (
    Reported("act-0", "tcp://127.0.0.1:8786", "host", 17, {"port": 4000}),
    Preempted("act-0", "tcp://10.0.0.7:40001"),
    Progress("learn-0", 3, 400, 0, 19.5, 0.25, 1.5, 1),
    Progress("learn-0", 3, 400, 0, None, 0.25, 1.5, 1),
    LogRecord("learn-0", "task", 20, "learned"),
)


def assert_in(encoded: bytes | dict[str, Any], data: bytes) -> None:
    """Assert that an input holds everything that an encoded JSON object says, with the same types."""
    said = json.loads(encoded) if isinstance(encoded, bytes) else encoded
    given = parse_json(data)
    assert {name: json.dumps(given.get(name)) for name in said} == {
        name: json.dumps(value) for name, value in said.items()
    }


def number_in(pattern: re.Pattern[bytes], data: bytes, which: int) -> int:
    """Return a number that stands in an input, so that checks against an object's name can be passed."""
    found = pattern.findall(data)
    return int(found[which]) if found else 0


def commit_of(data: bytes) -> Commit:
    return decode_commit(data, "commits/x.json", number_in(STAGE, data, -1))


def check_commit(commit: Commit, data: bytes) -> None:
    assert encode_commit(commit) == data


def hint_of(data: bytes) -> Hint:
    return read_hint(MemoryStore({LATEST: data}))


def check_hint(hint: Hint, data: bytes) -> None:
    assert -1 <= hint.stage <= 10**12
    store = MemoryStore()
    if hint.stage >= 0:
        write_hint(store, hint)
        assert read_hint(store) == hint


def claims_of(data: bytes) -> list[Claim]:
    reader = "readers/replay-0/"
    return recorded_claims(MemoryStore({f"{reader}{LEASE}": LIVING.encode(), f"{reader}claim.json": data}))


def check_claims(claims: list[Claim], data: bytes) -> None:
    (claim,) = claims
    assert_in({name: value for name, value in asdict(claim).items() if name != "reader"}, data)


def retention_of(data: bytes) -> int:
    return shards_kept_from(MemoryStore({RETENTION: data}))


def choice_of(data: bytes) -> Choice:
    return Choice.decode(data, f"choices/00000002/{number_in(ROUND, data, 0):08d}.json")


def check_choice(choice: Choice, data: bytes) -> None:
    assert choice.encode() == data


def order_of(data: bytes) -> ArrivalOrder:
    return ArrivalOrder.decode(data, f"orders/00000002/{number_in(ROUND, data, 0):08d}.json")


def check_order(order: ArrivalOrder, data: bytes) -> None:
    assert order.encode() == data


def check_timings(timings: StageTimings | None, data: bytes) -> None:
    assert timings is None or decode_timings(encode_timings(timings)) == timings


def attempt_of(data: bytes) -> int:
    return current_attempt(RunFolder(MemoryStore({"r/attempts/00000003.json": data}), "r"), 3)


def run_of(data: bytes) -> Any:
    """Read `run.json` as a resume does: its form, the digest of its identity, its code and its settings."""
    run = RunFolder(MemoryStore({f"r/{RUN}": data}), "r")
    description = run.load("config")
    run.genesis()
    config = description["config"]
    if not isinstance(config, dict):
        return build_stored_config(config)
    local_code(config)
    found = build_stored_config(config)
    found.identity()
    return found


def check_run(config: Any, data: bytes) -> None:
    canonical_json(config.identity())
    stored = canonical_json(config.model_dump(mode="json", exclude={"store", "cluster"}))
    again = build_stored_config(json.loads(stored))
    assert again.identity() == config.identity()


def check_event(event: Any, data: bytes) -> None:
    assert decode_event(json.loads(json.dumps(encode_event(event)))) == event


def reader_of(data: bytes) -> ReaderState:
    return ReaderState.from_json(parse_json(data))


def check_reader(state: ReaderState, data: bytes) -> None:
    assert_in(state.to_json(), data)


def whole_number(number: int, data: bytes) -> None:
    assert type(number) is int


def target(name: str, decode: Any, seeds: tuple[bytes, ...], refusals: Any, check: Any) -> Target:
    refused = refusals if isinstance(refusals, tuple) else (refusals,)
    return Target(name, decode, seeds, refused, check, mutate_json)


READER = canonical_json(ReaderState(3, 0, 7, 12).to_json())
JSON_TARGETS = (
    target("lease", Lease.decode, golden("files/lease.json", "run/lease.json"), CorruptObjectError,
           lambda lease, data: assert_in(lease.encode(), data)),
    target("commit", commit_of, COMMITS, CorruptObjectError, check_commit),
    target("hint", hint_of, golden("run/latest.json", "files/log/latest.json"), (), check_hint),
    target("claim", claims_of, golden("files/claims/readers/replay-0123456789ab/claim.json"), CorruptObjectError,
           check_claims),
    target("retention", retention_of, golden("files/retention.json"), CorruptObjectError, whole_number),
    target("choice", choice_of, golden("files/choice.json"), CorruptObjectError, check_choice),
    target("order", order_of, (ArrivalOrder(21, (0, 1, 1, 0)).encode(),), CorruptObjectError, check_order),
    target("timings", decode_timings, golden("replayed/timings/00000000-00000001.json"), (), check_timings),
    target("attempt", attempt_of, golden("files/attempt/attempts/00000003.json"), CorruptObjectError, whole_number),
    target("run", run_of, golden("run/run.json", "replayed/run.json"), (CorruptObjectError, ConfigError), check_run),
    target("event", lambda data: decode_event(parse_json(data)),
           tuple(json.dumps(encode_event(event)).encode() for event in EVENTS), (RecordError, ValueError), check_event),
    target("reader", reader_of, (READER,), ValueError, check_reader),
)  # fmt: skip
