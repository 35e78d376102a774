"""A fork holds an old commit and all that it needs; intact commits are never given up."""

import json

import pytest

from penstock.storage.errors import (
    ConfigError,
    CorruptObjectError,
    LeaseHeldError,
    RunExistsError,
    RunNotFoundError,
)
from penstock.storage.runs.commits import commit_name
from penstock.storage.runs.continuing.extensions import Extension, list_extensions, store_extension
from penstock.storage.runs.continuing.forking import ABANDONED, abandon_after, fork_run
from penstock.storage.runs.continuing.leftovers import refuse_leftovers
from penstock.storage.runs.gc import collect
from penstock.storage.runs.lease import LEASE, acquire
from penstock.storage.runs.reader_claims import reading
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.verification import verify_run
from penstock.storage.stores.open import open_store

from ....support.stored.stored_run import damage
from ..test_gc import History

STAGES = 4


@pytest.fixture
def history(tmp_path):
    """Return four committed stages, and the objects of a fifth that has no commit."""
    history = History(open_store(tmp_path / "runs"), real_shards=True)
    for stage in range(STAGES):
        history.commit(stage)
    history.parts(STAGES)
    return history


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "history"


@pytest.fixture
def target(tmp_path):
    return RunFolder(open_store(tmp_path / "runs"), "forked")


def contents(run):
    return {name: run.store.read(name) for name in run.store.list() if name != LEASE}


def test_of_two_forks_to_one_name_one_is_refused(history, target):
    """Otherwise the slower one would write its commits over those of a run that the other one has made."""
    refused = []

    def meanwhile(done: int, _: int) -> None:
        if done == 1:
            with pytest.raises(LeaseHeldError, match="a fork"):
                fork_run(history.run, target, 0)
            refused.append(done)

    fork_run(history.run, target, 1, on_progress=meanwhile)
    assert refused == [1]
    assert target.log.newest_stage() == 1
    assert not verify_run(target).faults
    with pytest.raises(RunExistsError, match="there is a run 'forked'"):
        fork_run(history.run, target, 0)


def test_a_fork_holds_what_its_commit_needs(history, target):
    """The commits up to the stage with their shards, and that stage's state; the source is what it was."""
    before = contents(history.run)
    report = fork_run(history.run, target, 1)
    forked = contents(target)
    commits = {commit_name(0), commit_name(1)}
    needed = {*commits, *history.named(0, "shards"), *history.named(1, "shards"), *history.resumable(1), "run.json"}
    assert forked.keys() == needed
    assert {name: before[name] for name in needed - {"run.json"}} == {
        name: data for name, data in forked.items() if name != "run.json"
    }
    assert (report.objects, report.nbytes) == (
        len(needed),
        sum(len(data) for name, data in forked.items() if name not in {*commits, "run.json"}),
    )
    description = target.load()
    assert description["forked_from"] == {"run": "history", "store": history.run.root.url, "stage": 1}
    assert target.genesis() == history.run.genesis()
    assert contents(history.run) == before
    assert not verify_run(target).faults


def test_a_fork_keeps_the_shards_of_its_own_stages(tmp_path, target):
    """Also where the source has dropped those of later stages than the fork begins with."""
    history = History(open_store(tmp_path / "runs"), real_shards=True)
    for stage in range(8):
        history.commit(stage, mean_return=9.0 if stage == 2 else 1.0)
    collect(history.run, drop_shards_before=6)
    fork_run(history.run, target, 2)
    forked = History(target.root, target.name, real_shards=True)
    for stage in (3, 4):
        forked.commit(stage)
    collect(target)
    assert forked.named(3, "shards") | forked.named(4, "shards") <= contents(target).keys()
    assert verify_run(target).faults == ()
    with reading(target.store, "test", 3, 4):
        pass


def test_an_interrupted_fork_leaves_nothing_to_another_one(history, target, monkeypatch):
    """A fork from an earlier stage under the same name begins there."""
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "create", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fork_run(history.run, target, 2)
    assert not target.exists()
    fork_run(history.run, target, 1)
    assert target.log.newest_stage() == 1
    assert verify_run(target).faults == ()


def test_a_fork_of_another_stage_keeps_no_object_of_an_interrupted_one(history, target, monkeypatch):
    """Not only of the log: a stage that is acted next would take states and shards that are stored for its own."""
    clean = RunFolder(target.root, "clean")
    fork_run(history.run, clean, 1)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "create", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fork_run(history.run, target, 3)
    target.store.write("shards/00000003/notes.txt/mine", [b"not Penstock's"])
    fork_run(history.run, target, 1)
    assert contents(target).keys() - contents(clean).keys() == {"shards/00000003/notes.txt/mine"}


def test_no_run_begins_in_what_an_interrupted_fork_has_left(history, target, monkeypatch):
    """Its members would take the other run's shards for theirs; initial parameters and others' files harm nothing."""
    target.store.write("initial/" + "0" * 32 + ".safetensors", [b"?"])
    target.store.write("notes.txt", [b"not Penstock's"])
    refuse_leftovers(target)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "create", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fork_run(history.run, target, 1)
    with pytest.raises(
        ConfigError, match=r"forked has no 'run\.json', but \d+ objects of a run, such as 'checkpoints/"
    ):
        refuse_leftovers(target)
    fork_run(history.run, target, 1)
    refuse_leftovers(target)


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_driven_run_can_be_forked(history, target):
    """Committed objects never change; garbage collection waits for the reader."""
    with acquire(history.run.store, "somebody", 30.0):
        fork_run(history.run, target, 2)
    assert target.log.newest_stage() == 2


def test_a_stage_without_its_state_is_refused(history, target):
    """Garbage collection has removed its checkpoint; nothing says that there is a new run."""
    collect(history.run)
    with pytest.raises(ConfigError, match="gc"):
        fork_run(history.run, target, 1)
    assert not target.exists()
    fork_run(history.run, target, STAGES - 1)
    assert target.exists()


@pytest.mark.parametrize("stage", [-1, STAGES, 99])
def test_a_fork_of_a_missing_stage_is_refused(history, target, stage):
    """The error has the committed stages."""
    with pytest.raises(ConfigError, match="stages 0 to 3"):
        fork_run(history.run, target, stage)
    with pytest.raises(RunNotFoundError):
        fork_run(RunFolder(history.run.root, "absent"), target, 0)
    target.create({"seed": 2})
    with pytest.raises(RunExistsError):
        fork_run(history.run, target, 0)


@pytest.mark.parametrize("kind", ["altered", "cut", "empty"])
def test_a_damaged_object_is_not_forked(history, folder, target, kind):
    """Be it a commit, a shard or the checkpoint; the error names it."""
    for name in (commit_name(0), min(history.named(0, "shards")), history.committed[1]["checkpoint"]["name"]):
        kept = (folder / name).read_bytes()
        damage(folder, name, kind)
        with pytest.raises(CorruptObjectError, match=name):
            fork_run(history.run, target, 1)
        assert not target.exists()
        (folder / name).write_bytes(kept)
    fork_run(history.run, target, 1)


@pytest.mark.parametrize("kind", ["altered", "cut", "empty"])
@pytest.mark.parametrize("what", ["commit", "checkpoint", "states", "snapshots"])
def test_damaged_commits_are_abandoned(history, folder, what, kind):
    """They move aside with a record, damaged objects go, and the log ends with an intact commit again.

    The problem of each names the object that is damaged, not the commit that only names it.
    """
    damaged = []
    for stage in (3, 2):
        name = commit_name(stage) if what == "commit" else history.committed[stage].get(what)
        name = name if isinstance(name, str) else (name if isinstance(name, dict) else name[-1])["name"]
        damage(folder, name, kind)
        damaged.append(name)
    before = {commit_name(stage): (folder / commit_name(stage)).read_bytes() for stage in (2, 3)}
    found = abandon_after(history.run, 1)
    assert list(found) == [commit_name(3), commit_name(2)]
    assert all(f"'{name}'" in problem for name, problem in zip(damaged, found.values(), strict=True))
    assert history.run.log.newest_stage() == 1
    assert not verify_run(history.run).faults
    record, *moved = sorted(
        (folder / ABANDONED).rglob("*.json"), key=lambda path: (path.name != "record.json", path.name)
    )
    assert {f"commits/{path.name}": path.read_bytes() for path in moved} == before
    problems = json.loads(record.read_text())["problems"]
    assert problems == found


def test_replaced_commits_are_abandoned(history, folder):
    """A valid commit that is not what its neighbours or the hint say: which of them is wrong can not be known."""
    for stage, abandoned in ((2, [3, 2]), (3, [3])):
        path = folder / commit_name(stage)
        original = {number: (folder / commit_name(number)).read_bytes() for number in (2, 3)}
        hint = (folder / "latest.json").read_bytes()
        path.write_bytes(path.read_bytes().replace(b'"episodes":0', b'"episodes":7'))
        assert path.read_bytes() != original[stage]
        found = abandon_after(history.run, abandoned[-1] - 1)
        assert list(found) == [commit_name(number) for number in abandoned]
        for number, data in original.items():
            (folder / commit_name(number)).write_bytes(data)
        (folder / "latest.json").write_bytes(hint)


def test_stages_that_are_made_again_keep_their_shards(history, folder):
    """Shards of the abandoned ones may have been dropped, and those that follow are others."""
    collect(history.run, keep_checkpoints=2, drop_shards_before=STAGES)
    damage(folder, history.committed[3]["checkpoint"]["name"], "altered")
    abandon_after(history.run, 2)
    history.commit(3)
    collect(history.run)
    assert history.named(3, "shards") <= contents(history.run).keys()
    assert not [fault for fault in verify_run(history.run).faults if fault.committed]


def test_evaluations_of_abandoned_versions_are_moved_with_them(history, folder):
    """Another run's best version would count otherwise, where the stages are made again with other bytes."""
    kept = history.run.log.read(1).version
    names = [f"evaluations/{version:08d}-1-20.json" for version in (kept, kept + 1)]
    for name in names:
        history.run.store.write(name, [b"{}"])
    for stage in (2, 3):
        damage(folder, history.committed[stage]["checkpoint"]["name"], "altered")
    abandon_after(history.run, 1)
    assert history.run.store.list("evaluations/") == names[:1]
    assert [path.name for path in (folder / ABANDONED).rglob("*-1-20.json")] == [names[1].rpartition("/")[2]]


def test_extensions_of_abandoned_stages_are_moved_with_them(history, folder):
    """They name commits by digest: where such a stage is made again with other bytes, no run could be read."""
    for stage in (1, 3):
        store_extension(history.run.store, Extension(stage, history.run.log.digest_of(stage), 9, None))
    for stage in (2, 3):
        damage(folder, history.committed[stage]["checkpoint"]["name"], "altered")
    abandon_after(history.run, 1)
    assert list(list_extensions(history.run.store)) == [1]
    assert [path.name for path in (folder / ABANDONED).rglob("extension-*")] == ["extension-00000003.json"]


def test_missing_commits_leave_a_gap_that_is_closed(history, folder):
    """A commit behind a missing one can't follow anything."""
    (folder / commit_name(2)).unlink()
    assert list(abandon_after(history.run, 1)) == [commit_name(3)]
    assert history.run.log.newest_stage() == 1


def test_an_intact_commit_is_never_abandoned(history, folder):
    """Nothing changes, whichever other commits are damaged; the error names it and the way out."""
    before = contents(history.run)
    with pytest.raises(ConfigError, match=r"stage 3 is intact.*penstock fork"):
        abandon_after(history.run, 1)
    assert contents(history.run) == before
    damage(folder, history.committed[3]["checkpoint"]["name"], "altered")
    before = contents(history.run)
    with pytest.raises(ConfigError, match="stage 2 is intact"):
        abandon_after(history.run, 1)
    assert contents(history.run) == before
    abandon_after(history.run, 2)


def test_a_stage_that_cannot_be_resumed_is_refused(history, folder):
    """It is damaged itself, has no later commit, was not committed, or a flow drives the run."""
    with pytest.raises(ConfigError, match="no later commit"):
        abandon_after(history.run, STAGES - 1)
    with pytest.raises(ConfigError, match=f"run 'history' has committed stages 0 to {STAGES - 1}, not 9"):
        abandon_after(history.run, 9)
    with acquire(history.run.store, "somebody", 30.0), pytest.raises(LeaseHeldError):
        abandon_after(history.run, 1)
    for stage in (1, 2, 3):
        damage(folder, history.committed[stage]["checkpoint"]["name"], "empty")
    before = contents(history.run)
    with pytest.raises(CorruptObjectError, match="can't be resumed either"):
        abandon_after(history.run, 1)
    assert contents(history.run) == before
