"""A run's folder: created once, loaded as written, and listed cheaply with how far it is."""

import json
import os
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError, CorruptObjectError, RunExistsError, RunNotFoundError
from penstock.storage.records import from_json
from penstock.storage.refs import checkpoint_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.run import RunFolder, RunSummary, best_version, list_runs, stored_evaluations
from penstock.storage.stores.open import open_store


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    """A local folder, and a store without folders."""
    if request.param == "local":
        return open_store(str(tmp_path / "root"))
    return open_store(f"memory://{tmp_path.name}/root")


def commit(run, stage, **changes):
    content = digest(b"checkpoint")
    run.log.append(
        from_json(
            Commit,
            {
                "stage": stage,
                "parent": run.log.digest_of(stage - 1) if stage else run.genesis(),
                "rounds": [stage, stage],
                "version": stage + 1,
                "env_steps": 64 * (stage + 1),
                "episodes": 0,
                "shards": [],
                "states": [],
                "snapshots": [],
                "checkpoint": {"name": checkpoint_name(stage, content), "digest": content, "nbytes": 1},
                "metrics": {},
                "evaluation": None,
                "finished": None,
            }
            | changes,
        )
    )


def test_a_run_is_what_it_was_created_as(root):
    """Once and for good: a second creation is refused and changes nothing."""
    run = RunFolder(root, "first")
    assert not run.exists()
    run.create({"config": {"seed": 3}, "created": "2026-01-02"})
    assert run.exists()
    with pytest.raises(RunExistsError, match="penstock resume first"):
        RunFolder(root, "first").create({"config": {"seed": 4}})
    assert run.load() == {"config": {"seed": 3}, "created": "2026-01-02"}


def test_command_lines_name_the_store_where_it_has_to_be_given(tmp_path, monkeypatch):
    """As they are typed into a shell; the usual store is a folder of the working directory."""
    monkeypatch.chdir(tmp_path)
    assert RunFolder(open_store("runs"), "x").command("resume") == "penstock resume x"
    elsewhere = RunFolder(open_store("my runs"), "x").command("fork", "NEW", "--from-stage 3")
    assert elsewhere == f"penstock fork x NEW --from-stage 3 --store '{tmp_path}/my runs'"


def test_a_missing_run_is_named(root):
    """The error names the run."""
    run = RunFolder(root, "absent")
    with pytest.raises(RunNotFoundError, match="absent"):
        run.load()
    with pytest.raises(RunNotFoundError, match="absent"):
        run.genesis()


def test_the_first_commit_can_be_bound_to_the_run(root):
    """genesis() depends on the run's identity alone, and the log verifies against it."""
    run, twin, other = (RunFolder(root, name) for name in ("bound", "twin", "other"))
    run.create({"identity": {"seed": 1}, "created": "2026-01-02"})
    twin.create({"identity": {"seed": 1}, "created": "2026-01-03"})
    other.create({"identity": {"seed": 2}, "created": "2026-01-02"})
    assert run.genesis() == twin.genesis()
    assert run.genesis() != other.genesis()
    commit(run, 0)
    commit(run, 1)
    assert run.log.verify(run.genesis()) == 2


def test_a_run_travels_between_processes(root):
    """Tasks get it by pickle, and find the same run."""
    run = RunFolder(root, "travels")
    run.create({"seed": 1})
    commit(run, 0)
    again = pickle.loads(pickle.dumps(run))
    assert (again.name, again.load(), again.log.newest()) == (run.name, run.load(), run.log.newest())


@pytest.mark.parametrize("data", [b"", b"{", b"[]\n", b'{"seed": 1}\n', b'{"seed":1}', b"\xff", b'{"seed":NaN}\n'])
def test_an_altered_run_json_is_refused_by_name(root, data):
    """Cut short, edited or something else: an error, never another configuration."""
    run = RunFolder(root, "altered")
    run.create({"seed": 1})
    run.store.write("run.json", [data])
    with pytest.raises(CorruptObjectError, match=r"run\.json"):
        run.load()


def test_any_altered_byte_of_run_json_is_noticed(root):
    """Also one that leaves a whole JSON object, in an entry that the identity does not hold.

    Only the digest's own name is not: without it, everything else is as it was.
    """
    run = RunFolder(root, "altered")
    run.create({"created": "2026-01-02", "identity": {"seed": 3}, "made_with": {"torch": "2.13.0"}})
    data = run.store.read("run.json")
    name = data.index(b"digest")
    for index in {*range(len(data))} - {*range(name, name + len("digest"))}:
        altered = bytearray(data)
        altered[index] ^= 0x01
        run.store.write("run.json", [altered])
        with pytest.raises(CorruptObjectError, match=r"run\.json"):
            run.load("created", "identity", "made_with")


def test_a_run_json_without_its_digest_is_read(root):
    """As version 0.1 wrote it; a copy of it has one."""
    run, copy = RunFolder(root, "old"), RunFolder(root, "copy")
    run.store.write("run.json", [b'{"created":"2026-01-02"}\n'])
    copy.create(run.load())
    assert copy.load() == run.load() == {"created": "2026-01-02"}
    assert b'"digest":' in copy.store.read("run.json")


def test_missing_parts_of_a_run_are_named(root):
    """The error says what is there, too."""
    run = RunFolder(root, "altered")
    run.create({"config": {}, "idantity": {}})
    assert run.load("config") == {"config": {}, "idantity": {}}
    with pytest.raises(CorruptObjectError, match=r"run\.json.*found config, idantity, expected identity as well"):
        run.load("config", "identity")


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a/b", "..", "a b", "a" * 65, "a\n", "é"])
def test_bad_names_are_refused(root, name):
    """Before anything is stored, whatever the store would make of them."""
    with pytest.raises(ConfigError, match="can't name a run"):
        RunFolder(root, name)


def test_a_path_in_place_of_a_name_is_answered_with_both_parts(root):
    """Python's functions take a run's path, so it is tried with commands as well."""
    with pytest.raises(
        ConfigError, match=r"cartpole-1 --store s3://bucket/runs \(in Python store='s3://bucket/runs'\)$"
    ):
        RunFolder(root, "s3://bucket/runs/cartpole-1/")
    for name in ("s3://bucket", "runs/", "Cart/Pole A"):  # no store and name of a run
        with pytest.raises(ConfigError, match=r"a letter or a digit$"):
            RunFolder(root, name)


def test_values_that_json_cannot_hold_are_not_stored(root):
    """A configuration that could not be read back is refused."""
    run = RunFolder(root, "nan")
    with pytest.raises(ValueError):
        run.create({"learning_rate": float("nan")})
    assert not run.exists()


def test_an_empty_store_has_no_runs(root):
    """Nor has one that doesn't exist yet."""
    assert list_runs(root) == []


def test_runs_are_listed_by_address_too(tmp_path: Path):
    """As policies are loaded and runs opened."""
    RunFolder(open_store(tmp_path), "mine").create({})
    found = list_runs(open_store(tmp_path))
    assert [summary.name for summary in found] == ["mine"]
    assert list_runs(tmp_path) == list_runs(str(tmp_path)) == found


def test_runs_are_listed_with_how_far_they_are(root):
    """Newest stage, why it ended, steps, the newest evaluation, when it was created, and whether it is a replay."""
    for name in ("b-running", "a-finished"):
        RunFolder(root, name).create({"created": f"when {name}"})
    RunFolder(root, "c-new").create({"created": "when c-new", "config": {"source": {"runs": ["a-finished"]}}})
    running, finished = RunFolder(root, "b-running"), RunFolder(root, "a-finished")
    commit(running, 0, evaluation={"mean_return": 10.5})
    commit(running, 1, evaluation={"mean_return": 20.5})
    commit(running, 2)
    commit(finished, 0, finished="the goal was reached")
    root.write("another-folder/file", [b"not ours"])
    root.write("NOT-OURS/run.json", [b"{}\n"])
    assert list_runs(root) == [
        RunSummary("a-finished", 0, "the goal was reached", 64, None, "when a-finished"),
        RunSummary("b-running", 2, None, 192, 20.5, "when b-running"),
        RunSummary("c-new", None, None, 0, None, "when c-new", replay=True),
    ]


def test_a_creation_whose_answer_was_lost_has_succeeded(root, monkeypatch):
    """A client that sends its request again finds what it has written; another description is another run."""
    kind, run = type(root), RunFolder(root, "mine")
    create = kind.create

    def twice(store, name, data):
        create(store, name, data)
        create(store, name, data)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "create", twice)
        if root.path("x") is None:
            run.create({"created": "now"})
        else:  # a folder loses no answers, so it was somebody else
            with pytest.raises(RunExistsError):
                run.create({"created": "now"})
    assert [summary.name for summary in list_runs(root)] == ["mine"]
    with pytest.raises(RunExistsError):
        run.create({"created": "later"})


def test_a_run_is_listed_as_soon_as_it_exists(root, monkeypatch):
    """Whenever the process ends that creates it."""
    run, kind = RunFolder(root, "mine"), type(root)
    create = kind.create

    def create_and_end(store, name, data):
        create(store, name, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "create", create_and_end)
    with pytest.raises(KeyboardInterrupt):
        run.create({"created": "now"})
    assert [summary.name for summary in list_runs(root)] == ["mine"]


def test_a_folder_of_another_user_does_not_hide_the_runs(caplog):
    """It is left out, with a warning that names it."""
    with TemporaryDirectory() as folder:  # pytest's own is closed to other users
        Path(folder).chmod(0o755)
        root = open_store(folder)
        RunFolder(root, "mine").create({"created": "now"})
        (Path(folder) / "private").mkdir(mode=0)
        user = os.geteuid()
        try:
            if user == 0:  # who may read every folder
                os.seteuid(65534)
            assert [summary.name for summary in list_runs(root)] == ["mine"]
        finally:
            os.seteuid(user)
    assert "private' is left out" in caplog.text


def test_a_damaged_run_does_not_hide_the_others(root):
    """It is listed with what is wrong with it."""
    for name in ("bad-commit", "bad-run", "good"):
        run = RunFolder(root, name)
        run.create({"created": "then"})
        commit(run, 0)
    RunFolder(root, "bad-commit").store.write("commits/00000000.json", [b"{"])
    RunFolder(root, "bad-run").store.write("run.json", [canonical_json([])])
    bad_commit, bad_run, good = list_runs(root)
    assert "commits/00000000.json" in bad_commit.problem
    assert bad_commit.created == "then"
    assert "run.json" in bad_run.problem
    assert (good.stage, good.problem) == (0, None)


def test_a_run_that_was_removed_is_not_listed(root):
    """Whatever an index remembers of it."""
    run = RunFolder(root, "removed")
    run.create({"created": "then"})
    run.store.delete(run.store.list())
    assert list_runs(root) == []


def test_evaluations_that_are_none_are_passed_over(tmp_path: Path):
    """A file of another program, or one that was altered: reports and the choice of the best go on without it."""
    run = RunFolder(open_store(tmp_path), "mine")
    right = {"version": 4, "mean_return": 2, "episodes": 3}
    others = ({**right, "version": "a"}, {**right, "mean_return": "q"}, {})
    others += ({**right, "max_return": None}, {**right, "min_return": "x"}, {**right, "mean_return": 10**400})
    for name, result in enumerate((right, *others)):
        run.store.write(f"evaluations/{name}.json", [json.dumps(result).encode()])
    assert stored_evaluations(run) == [right]


def test_the_evaluation_of_most_episodes_counts_for_a_version(tmp_path: Path):
    """A short one, in whichever file, does not take the place of a long one: `gc` keeps the version that is best."""
    run = RunFolder(open_store(tmp_path), "mine")
    for name, version, mean_return, episodes in (("1", 1, 500.0, 100), ("9", 1, 104.0, 1), ("5", 2, 300.0, 100)):
        result = {"version": version, "mean_return": mean_return, "episodes": episodes}
        run.store.write(f"evaluations/{name}.json", [json.dumps(result).encode()])
    assert best_version(run, []) == 1
    assert best_version(run, [], {2}) == 2
