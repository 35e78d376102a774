"""The commit log: committed once, found again whatever happens to the hints, and refused when it was tampered with."""

import json
import logging
import pickle

import pytest

from storage.commits import LATEST, CommitLog, commit_name
from storage.digest import canonical_json, digest
from storage.errors import CommitConflictError, CorruptObjectError, ObjectNotFoundError
from storage.refs import ShardRef
from storage.rollups import rollup_name
from storage.store import open_store

GENESIS = digest(b"run.json")


def make_commit(stage, parent, **changes):
    def ref(name, **numbers):
        content = digest(name.encode())
        return {"name": f"{name}-{content}", "digest": content, "nbytes": 10, **numbers}

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
    return [ShardRef.from_json(ref) for stage in range(stages) for ref in make_commit(stage, GENESIS)["shards"]]


def test_an_empty_log_has_no_newest_commit_and_no_shards(log):
    """A new run reads as such, without errors."""
    assert log.newest() is None
    assert list(log.shard_refs()) == []
    assert log.verify(GENESIS) == 0


def test_what_was_appended_is_read_back_and_is_the_newest(log, store):
    """A commit comes back as it went in, its bytes are canonical, and digest_of is of these bytes."""
    fill(log, 5)
    commit = make_commit(4, log.digest_of(3))
    assert log.read(4) == log.newest() == commit
    assert store.read(commit_name(4)) == canonical_json(commit) + b"\n"
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


def test_anothers_commit_at_that_number_is_a_conflict_that_names_both(log, store):
    """Other bytes are refused, both digests are told, and what stands there stays."""
    fill(log, 2)
    standing = store.read(commit_name(1))
    other = make_commit(1, log.digest_of(0), metrics={"loss": 7.0})
    with pytest.raises(CommitConflictError) as caught:
        log.append(other)
    for fact in (commit_name(1), digest(standing), digest(canonical_json(other) + b"\n")):
        assert fact in str(caught.value)
    assert store.read(commit_name(1)) == standing


def test_a_commit_can_leave_no_gap(log):
    """Without its predecessor a commit would never be found, so it is refused."""
    fill(log, 1)
    with pytest.raises(CommitConflictError, match=r"00000001\.json"):
        log.append(make_commit(2, GENESIS))
    assert log.newest()["stage"] == 0


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 8, 9, 17])
@pytest.mark.parametrize(
    "hint", [None, {"stage": 0}, {"stage": 999}, {"stage": -3}, {"stage": "x"}, [], b"", b'{"stage":', b"null"]
)
def test_the_newest_commit_is_found_without_and_with_a_wrong_hint(log, store, stages, hint):
    """latest.json is a hint: lost, stale, ahead of the log or damaged, it changes no answer."""
    fill(log, stages)
    if hint is None:
        store.delete([LATEST])
    else:
        store.write(LATEST, [hint if isinstance(hint, bytes) else json.dumps(hint).encode()])
    assert log.newest()["stage"] == stages - 1
    assert list(log.shard_refs()) == expected_shards(stages)


def test_the_hint_points_to_the_newest_commit(log, store):
    """Otherwise readers would have to look through the log each time."""
    fill(log, 3)
    assert json.loads(store.read(LATEST)) == {"stage": 2}


def test_a_hint_that_cant_be_written_fails_no_commit(log, store, caplog, tmp_path):
    """The commit stands; a warning says that readers have to look for it."""
    (tmp_path / "run" / LATEST).mkdir(parents=True)
    (tmp_path / "run" / LATEST / "in-the-way").touch()
    with caplog.at_level(logging.WARNING):
        fill(log, 2)
    assert LATEST in caplog.text
    (tmp_path / "run" / LATEST / "in-the-way").unlink()
    assert log.newest()["stage"] == 1


def test_rollups_are_written_at_their_interval_and_carry_all_shards(log, store):
    """After every third commit here; their shards and the later commits' are all of them, in order."""
    fill(log, 8)
    assert store.list("commits/rollup-") == [rollup_name(2), rollup_name(5)]
    # Were the roll-up not used, reading this commit would fail.
    store.delete([commit_name(4)])
    assert list(log.shard_refs()) == expected_shards(8)


def test_a_rollup_is_the_same_whoever_writes_it(log, store):
    """Roll-ups are idempotent: a twin's commit writes the same bytes."""
    fill(log, 6)
    before = store.read(rollup_name(5))
    store.delete([rollup_name(5), rollup_name(2)])
    log.append(make_commit(5, log.digest_of(4)))
    assert store.read(rollup_name(5)) == before


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "foreign", "gone"])
def test_a_damaged_rollup_is_told_and_not_used(log, store, caplog, damage):
    """Roll-ups only save reads: whatever happens to one, the shards are those of the commits."""
    fill(log, 7)
    data = store.read(rollup_name(5))
    place = data.index(b"shards/00000003")
    bad = {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "flipped": data[:place] + b"S" + data[place + 1 :],
        "foreign": store.read(rollup_name(2)),
        "gone": None,
    }[damage]
    if bad is None:
        store.delete([rollup_name(5)])
    else:
        store.write(rollup_name(5), [bad])
    with caplog.at_level(logging.WARNING):
        assert list(log.shard_refs()) == expected_shards(7)
    assert (rollup_name(5) in caplog.text) == (damage != "gone")


def edited(**changes):
    return lambda data: canonical_json(json.loads(data) | changes) + b"\n"


def without(key):
    return lambda data: canonical_json({k: v for k, v in json.loads(data).items() if k != key}) + b"\n"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: b"", "0 bytes"),
        (lambda data: data[:40], "no whole JSON"),
        (lambda data: data[:-1], "canonical"),
        (lambda data: data.replace(b'":', b'": '), "canonical"),
        (lambda data: b"\xff" + data, "no whole JSON"),
        (lambda data: data.replace(b"0.1", b"NaN"), "no whole JSON"),
        (lambda data: b"[]\n", "list"),
        (edited(format="penstock-commit/2"), "penstock-commit/1"),
        (edited(stage=1), "'stage' is 1"),
        (edited(stage=True), "'stage'"),
        (edited(env_steps=-1), "'env_steps'"),
        (edited(parent=""), "'parent'"),
        (edited(rounds=[3, 2]), "'rounds'"),
        (edited(shards=None), "'shards'"),
        (edited(shards=[{"name": "x"}]), "'shards'"),
        (edited(checkpoint={"name": "checkpoints/0-a", "digest": "b", "nbytes": 1}), "'checkpoint'"),
        (edited(metrics={"loss": "low"}), "'metrics'"),
        (edited(evaluation=3), "'evaluation'"),
        (edited(finished=True), "'finished'"),
        *((without(key), repr(key)) for key in make_commit(0, GENESIS)),
    ],
)
def test_a_damaged_commit_is_refused_by_name(log, store, damage, told):
    """Empty, cut, altered, of another stage or without a key: an error that names the file, never half a commit."""
    fill(log, 1)
    store.write(commit_name(0), [damage(store.read(commit_name(0)))])
    for read in (lambda: log.read(0), log.newest, lambda: log.verify(GENESIS)):
        with pytest.raises(CorruptObjectError) as caught:
            read()
        assert commit_name(0) in str(caught.value)
        assert told in str(caught.value)


@pytest.mark.parametrize("change", [{"metrics": {"loss": float("nan")}}, {"finished": 1}, {"shards": [3]}])
def test_a_malformed_commit_is_not_written(log, store, change):
    """What could not be read back is refused before anything is stored."""
    with pytest.raises(ValueError):
        log.append(make_commit(0, GENESIS, **change))
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
