"""The commit log: committed once, found again whatever happens to the hints, and refused when it was tampered with."""

import json
import logging
import pickle
from dataclasses import replace

import pytest

from penstock.storage.cache.node_cache import NodeCache
from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import CommitConflictError, CorruptObjectError, ObjectNotFoundError
from penstock.storage.records import from_json
from penstock.storage.runs.commit_schema import Commit, encode_commit
from penstock.storage.runs.commits import CommitLog, commit_name, commit_ref, read_commit
from penstock.storage.runs.latest import LATEST
from penstock.storage.runs.rollups.names import Span
from penstock.storage.stores.open import open_store

GENESIS = digest(b"run.json")


HOSTILE = {"name": "checkpoints/x/etc/passwd", "digest": "/etc/passwd", "nbytes": 1}
NAMES = {
    "shards": ("shards/00000000/00000000-0000-{}.arrow", {"round": 0, "tile": 0, "rows": 50}),
    "states": ("states/00000000/00000001-0000-{}.safetensors", {"round": 1, "tile": 0}),
    "snapshots": ("snapshots/00000002-{}.safetensors", {"version": 2}),
    "league": ("snapshots/00000001-{}.safetensors", {"version": 1}),
}
"""Names without their digests, and the other fields of references that agree with them."""


def commit_json(stage, parent, **changes):
    """Return what is stored of a commit, written down without the record."""

    def ref(name, **numbers):
        content = digest(name.encode())
        ending = "arrow" if name.startswith("shards/") else "safetensors"
        return {"name": f"{name}-{content}.{ending}", "digest": content, "nbytes": 10, **numbers}

    return {
        "format": "penstock-commit/1",
        "stage": stage,
        "parent": parent,
        "rounds": [2 * stage, 2 * stage + 1],
        "version": 2 * stage + 2,
        "env_steps": 100 * (stage + 1),
        "episodes": stage,
        "shards": [
            ref(f"shards/{stage:08d}/{2 * stage + i:08d}-0000", round=2 * stage + i, tile=0, rows=50) for i in range(2)
        ],
        "states": [ref(f"states/{stage:08d}/{2 * stage + 1:08d}-0000", round=2 * stage + 1, tile=0)],
        "snapshots": [ref(f"snapshots/{2 * stage + 2:08d}", version=2 * stage + 2)],
        "checkpoint": ref(f"checkpoints/{stage:08d}"),
        "metrics": {"loss": 0.1 + stage},
        "evaluation": None,
        "finished": None,
    } | changes


def make_commit(stage, parent, **changes):
    said = commit_json(stage, parent, **changes)
    del said["format"]
    return from_json(Commit, said)


def fill(log, stages):
    for stage in range(stages):
        log.append(make_commit(stage, log.digest_of(stage - 1) if stage else GENESIS))


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "run"))


@pytest.fixture
def log(store):
    return CommitLog(store, rollup_interval=3)


def expected_shards(stages):
    return [ref for stage in range(stages) for ref in make_commit(stage, GENESIS).shards]


def test_a_commit_read_by_digest_is_that_one_or_an_error(log, store, s3_url, tmp_path):
    """It is identified by its digest, the parent of the next one, read once a node, and never replaced by another."""
    fill(log, 2)
    ref = commit_ref(log.read(1))
    assert ref.digest == log.digest_of(1)
    assert ref.nbytes == len(store.read(ref.name))
    cache = NodeCache(tmp_path / "cache")
    assert read_commit(cache, store, ref) == log.read(1)
    remote = open_store(f"{s3_url}/named")
    remote.write(ref.name, [store.read(ref.name)])
    assert read_commit(cache, remote, ref) == log.read(1)
    remote.delete([ref.name])
    assert read_commit(cache, remote, ref) == log.read(1)

    store.write(ref.name, [encode_commit(replace(log.read(1), episodes=7))])
    with pytest.raises(CorruptObjectError, match="has the digest"):
        read_commit(cache, store, ref)
    store.delete([ref.name])
    with pytest.raises(ObjectNotFoundError):
        read_commit(cache, store, ref)


def test_an_empty_log_has_no_newest_commit_and_no_shards(log):
    """A new run reads as such, without errors."""
    assert log.newest() is None
    assert list(log.shard_refs()) == []
    assert log.verify(GENESIS) == 0


def test_an_appended_commit_is_read_back_and_is_the_newest(log, store):
    """A commit comes back as it went in, its bytes are canonical, and digest_of is of these bytes."""
    fill(log, 5)
    commit = make_commit(4, log.digest_of(3))
    assert log.read(4) == log.newest() == commit
    assert store.read(commit_name(4)) == canonical_json(commit_json(4, log.digest_of(3))) + b"\n"
    assert log.digest_of(4) == digest(store.read(commit_name(4)))
    assert log.verify(GENESIS) == 5
    assert pickle.loads(pickle.dumps(log)).newest() == commit
    with pytest.raises(ObjectNotFoundError):
        log.read(5)


def test_a_twin_that_commits_the_same_is_accepted(log, store):
    """Same bytes: a lost answer or a twin, and no error; nothing changes."""
    fill(log, 2)
    before = {name: store.read(name) for name in store.list("commits/")}
    CommitLog(store).append(make_commit(1, log.digest_of(0)))
    assert {name: store.read(name) for name in store.list("commits/")} == before


def test_another_commit_at_that_number_is_a_conflict_that_names_both(log, store):
    """Other bytes are refused, the error has both digests, and the stored commit stays."""
    fill(log, 2)
    standing = store.read(commit_name(1))
    other = make_commit(1, log.digest_of(0), metrics={"loss": 7.0})
    with pytest.raises(CommitConflictError) as caught:
        log.append(other)
    for fact in (commit_name(1), digest(standing), digest(encode_commit(other))):
        assert fact in str(caught.value)
    assert store.read(commit_name(1)) == standing


def test_a_commit_after_a_gap_is_refused(log):
    """Without its predecessor a commit would never be found, so it is refused."""
    fill(log, 1)
    with pytest.raises(CommitConflictError, match=r"00000001\.json"):
        log.append(make_commit(2, GENESIS))
    assert log.newest().stage == 0


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 8, 9, 17])
@pytest.mark.parametrize(
    "hint",
    [
        None,
        {"stage": 0},
        {"stage": 999},
        {"stage": -3},
        {"stage": "x"},
        {"stage": 10**300},
        {"stage": 0, "digest": 7},
        {"stage": 999, "digest": "0" * 32},
        [],
        b"",
        b'{"stage":',
        b"null",
        b"[" * 100_000,
    ],
)
def test_the_newest_commit_is_found_without_and_with_a_wrong_hint(log, store, stages, hint):
    """latest.json is a hint: lost, stale, ahead of the log or damaged, it changes no answer."""
    fill(log, stages)
    if hint is None:
        store.delete([LATEST])
    else:
        store.write(LATEST, [hint if isinstance(hint, bytes) else json.dumps(hint).encode()])
    assert log.newest().stage == stages - 1
    assert list(log.shard_refs()) == expected_shards(stages)


def test_the_hint_points_to_the_newest_commit(log, store):
    """Readers need not search the log each time."""
    fill(log, 3)
    assert json.loads(store.read(LATEST)) == {"stage": 2, "digest": log.digest_of(2)}


def test_a_replaced_newest_commit_is_found_by_the_hints_digest(log, store):
    """No later commit holds its digest yet; the error names both files. A hint without it, or none, finds nothing."""
    fill(log, 3)
    name = commit_name(2)
    replaced = store.read(name).replace(b'"episodes":', b'"episodes":1')
    assert replaced != store.read(name)
    store.write(name, [replaced])
    with pytest.raises(CorruptObjectError, match=rf"{name}.*{LATEST}"):
        log.newest()
    for hint in ({"stage": 2}, {"stage": 1, "digest": log.digest_of(1)}):
        store.write(LATEST, [json.dumps(hint).encode()])
        assert log.newest().stage == 2


def test_a_commit_succeeds_without_its_hint(log, store, caplog, tmp_path):
    """The commit is intact; a warning says that readers have to search for it."""
    (tmp_path / "run" / LATEST).mkdir(parents=True)
    (tmp_path / "run" / LATEST / "in-the-way").touch()
    with caplog.at_level(logging.WARNING):
        fill(log, 2)
    assert LATEST in caplog.text
    (tmp_path / "run" / LATEST / "in-the-way").unlink()
    assert log.newest().stage == 1


def spans(store):
    return [name.removeprefix("commits/rollup-").removesuffix(".arrow") for name in store.list("commits/rollup-")]


def test_a_rollup_covers_its_own_span_and_no_more(log, store):
    """One follows every third commit here, and one every ninth for all nine: a shard is in two roll-ups at most."""
    fill(log, 20)
    narrow = [f"{first:08d}-{first + 2:08d}" for first in range(0, 18, 3)]
    assert spans(store) == sorted([*narrow, "00000000-00000008", "00000009-00000017"])


@pytest.mark.parametrize(
    ("first", "last"), [(0, None), (0, 19), (3, 11), (4, 4), (9, 30), (17, 18), (12, 3), (25, None)]
)
def test_shards_of_any_range_come_in_order(log, first, last):
    """The order does not depend on the commits and roll-ups that they are read from."""
    fill(log, 20)
    expected = expected_shards(20)[2 * first : 40 if last is None else max(0, 2 * (last + 1))]
    assert list(log.shard_refs(first, last)) == expected
    stages = log.shard_table(first, last)["stage"].to_pylist()
    assert stages == [ref.round // 2 for ref in expected]


def test_commits_that_a_rollup_covers_are_not_read(log, store):
    """The commits of a wide span and its narrow roll-ups are removed, so reading them would fail."""
    fill(log, 20)
    for stage in (*range(8), *range(9, 17)):
        store.delete([commit_name(stage)])
    store.delete([Span(first, first + 2).name for first in range(0, 18, 3)])
    assert list(log.shard_refs()) == expected_shards(20)


def test_rollups_of_twins_are_equal(log, store):
    """Roll-ups are idempotent: a twin's commit writes the same bytes, whatever roll-ups it finds."""
    fill(log, 9)
    names = store.list("commits/rollup-")
    before = [store.read(name) for name in names]
    store.delete([Span(0, 8).name, Span(6, 8).name, Span(3, 5).name])
    log.append(make_commit(8, log.digest_of(7)))
    assert store.read(Span(0, 8).name) == before[names.index(Span(0, 8).name)]
    assert store.read(Span(6, 8).name) == before[names.index(Span(6, 8).name)]


def test_a_rollup_that_would_be_too_large_is_left_out(log, store, monkeypatch):
    """Committing a stage never needs a million references in memory: the narrow roll-ups suffice."""
    monkeypatch.setattr("penstock.storage.runs.commits.WIDE_ROWS_LIMIT", 17)
    fill(log, 10)
    assert spans(store) == ["00000000-00000002", "00000003-00000005", "00000006-00000008"]
    assert list(log.shard_refs()) == expected_shards(10)


@pytest.mark.parametrize("span", [Span(0, 8), Span(3, 5)])
@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "foreign", "gone"])
def test_a_damaged_rollup_is_logged_and_not_used(log, store, caplog, damage, span):
    """Roll-ups only save reads: a damaged one is logged, and the shards are those of the commits."""
    fill(log, 11)
    if span != Span(0, 8):
        store.delete([Span(0, 8).name])
    data = store.read(span.name)
    place = data.index(b"shards/00000003")
    bad = {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "flipped": data[:place] + b"S" + data[place + 1 :],
        "foreign": store.read(Span(6, 8).name),
        "gone": None,
    }[damage]
    if bad is None:
        store.delete([span.name])
    else:
        store.write(span.name, [bad])
    with caplog.at_level(logging.WARNING):
        assert list(log.shard_refs()) == expected_shards(11)
    assert (span.name in caplog.text) == (damage != "gone")


def test_a_rollup_of_another_history_is_not_used(log, store, tmp_path, caplog):
    """Intact in itself, but of a run that another twin drove: it is bound to the commit that it ends with."""
    fill(log, 7)
    other = CommitLog(open_store(str(tmp_path / "other")), rollup_interval=3)
    for stage in range(6):
        parent = other.digest_of(stage - 1) if stage else GENESIS
        other.append(make_commit(stage, parent, metrics={"loss": 7.0}))
    store.write(Span(3, 5).name, [(tmp_path / "other" / Span(3, 5).name).read_bytes()])
    with caplog.at_level(logging.WARNING):
        assert list(log.shard_refs()) == expected_shards(7)
    assert Span(3, 5).name in caplog.text


def test_shards_are_not_read_from_a_commit_that_was_replaced(log, store):
    """A reader gets the shards that the newest commit was built upon, or an error that names the file."""
    fill(log, 11)
    store.write(commit_name(9), [edited(env_steps=7)(store.read(commit_name(9)))])
    with pytest.raises(CorruptObjectError, match=r"00000009\.json"):
        list(log.shard_refs())


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store):
        self.inner, self.requests = store, 0

    def __getattr__(self, name):
        function = getattr(self.inner, name)
        if not callable(function):
            return function

        def counted(*arguments, **options):
            self.requests += 1
            return function(*arguments, **options)

        return counted


@pytest.fixture(scope="module")
def long_logs(tmp_path_factory):
    """Stores of logs by length: one that ends within a block of ten, and one that ends with it and with a roll-up."""
    stores = {}
    for stages in (359, 360):
        stores[stages] = open_store(str(tmp_path_factory.mktemp("long") / str(stages)))
        fill(CommitLog(stores[stages], rollup_interval=10), stages)
    return stores


@pytest.mark.parametrize("stages", [359, 360])
@pytest.mark.parametrize(
    ("stale_by", "requests"), [(0, 4), (1, 5), (7, 5), (10, 8), (180, 8), (359, 8), ("lost", 8), ("ahead", 9)]
)
def test_the_end_of_a_long_log_is_found_in_few_requests(long_logs, stages, stale_by, requests):
    """The search begins at the newest roll-up, so a wrong hint costs few requests.

    Reading the commit is one of them. A hint that is stale by everything costs no more than a lost one.
    """
    store, wrong = long_logs[stages], {"lost": None, "ahead": 999}
    hint = wrong[stale_by] if stale_by in wrong else max(0, stages - 1 - stale_by)
    store.delete([LATEST]) if hint is None else store.write(LATEST, [json.dumps({"stage": hint}).encode()])
    counting = Counting(store)
    assert CommitLog(counting, rollup_interval=10).newest().stage == stages - 1
    assert counting.requests <= requests


@pytest.mark.parametrize(("since", "requests"), [(358, 2), (351, 4), (180, 7), (0, 7)])
def test_a_known_commit_saves_reading_the_hint(long_logs, since, requests):
    """A repeated poll starts at the last known commit, and finds those committed in between."""
    counting = Counting(long_logs[359])
    assert CommitLog(counting, rollup_interval=10).newest(since).stage == 358
    assert counting.requests <= requests


@pytest.mark.parametrize("stages", [1, 9, 10, 11, 37, 100, 101])
def test_the_end_is_found_without_hint_and_rollups(store, stages):
    """A log whose helpers are all lost is searched."""
    fill(CommitLog(store, rollup_interval=10), stages)
    store.delete([LATEST, *store.list("commits/rollup-")])
    assert CommitLog(store, rollup_interval=10).newest().stage == stages - 1


def test_shards_of_a_long_log_are_few_requests(tmp_path):
    """Nine wide roll-ups, nine narrow ones and nine commits at most, each once, for 999 commits here."""
    store = open_store(str(tmp_path / "run"))
    log = CommitLog(store, rollup_interval=10)
    fill(log, 299)
    counting = Counting(store)
    assert list(CommitLog(counting, rollup_interval=10).shard_refs()) == expected_shards(299)
    assert counting.requests <= 3 + 2 + 2 + 9 + 9


def edited(**changes):
    return lambda data: canonical_json(json.loads(data) | changes) + b"\n"


def without(key):
    return lambda data: canonical_json({k: v for k, v in json.loads(data).items() if k != key}) + b"\n"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "0 bytes"),
        (lambda data: data[:40], "not complete JSON"),
        (lambda data: data[:-1], "canonical"),
        (lambda data: data.replace(b'":', b'": '), "canonical"),
        (lambda data: b"\xff" + data, "not complete JSON"),
        (lambda data: data.replace(b"0.1", b"NaN"), "not complete JSON"),
        (lambda data: b"[]\n", "list"),
        (edited(format="penstock-commit/2"), "penstock-commit/1"),
        (edited(stage=1), "'stage' is 1"),
        (edited(stage=True), "'stage'"),
        (edited(env_steps=-1), "'env_steps'"),
        (edited(parent=""), "'parent'"),
        (edited(rounds=[3, 2]), "'rounds'"),
        (edited(shards=None), "'shards'"),
        (edited(shards=[{"name": "x"}]), "missing in 'shards[0]'"),
        (edited(checkpoint={"name": "checkpoints/0-a", "digest": "b", "nbytes": 1}), "'checkpoint.name'"),
        (edited(checkpoint=HOSTILE), "'checkpoint.name'"),
        *(
            (edited(**{field: [{"name": name.format(content), "digest": content, "nbytes": 1, **numbers}]}), place)
            for field, (name, numbers) in NAMES.items()
            for place in [f"'{field}[0].name'"]
            for content in ("x/../../../../etc/passwd", "F" * 32)
        ),
        (lambda data: b'{"a":' * 100_000, "nested too deeply"),
        (lambda data: data.replace(b"0.1", b"1e999"), "beyond float64"),
        (edited(metrics={"loss": "low"}), "'metrics.loss'"),
        (edited(evaluation=3), "'evaluation'"),
        (edited(finished=True), "'finished'"),
        (edited(another=1), "'another' unknown"),
        (edited(checkpoint={"name": "a-b", "digest": "b", "nbytes": 1, "rows": 1}), "'rows' unknown in 'checkpoint'"),
        *((without(key), repr(key)) for key in commit_json(0, GENESIS)),
    ],
)
def test_a_damaged_commit_is_refused_by_name(log, store, damage, message):
    """Empty, cut, altered, of another stage or without a key: an error that names the file, never half a commit."""
    fill(log, 1)
    store.write(commit_name(0), [damage(store.read(commit_name(0)))])
    for read in (lambda: log.read(0), log.newest, lambda: log.verify(GENESIS)):
        with pytest.raises(CorruptObjectError) as caught:
            read()
        assert commit_name(0) in str(caught.value)
        assert message in str(caught.value)


@pytest.mark.parametrize("change", [{"metrics": {"loss": float("nan")}}, {"finished": 1}, {"shards": (3,)}])
def test_a_malformed_commit_is_not_written(log, store, change):
    """A commit that could not be read back is refused before anything is stored."""
    with pytest.raises(ValueError):
        log.append(replace(make_commit(0, GENESIS), **change))
    assert store.list() == []


def test_verify_notices_a_commit_that_was_replaced(log, store):
    """A well-formed commit with other content breaks the chain at its successor."""
    fill(log, 4)
    store.write(commit_name(1), [edited(env_steps=7)(store.read(commit_name(1)))])
    with pytest.raises(CorruptObjectError, match=r"00000002\.json"):
        log.verify(GENESIS)


def test_verify_notices_another_runs_log(log):
    """The first commit is bound to run.json."""
    fill(log, 2)
    with pytest.raises(CorruptObjectError, match=r"run\.json"):
        log.verify(digest(b"another run.json"))
