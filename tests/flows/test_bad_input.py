"""Whatever is wrong with what a run is given is said in one clear error that names the thing, in bounded time."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import CorruptObjectError
from storage.refs import ShardRef
from storage.shards import decode_shard

from .conftest import BRIEF, Bench, Settings
from .stored import assert_same, damage

KINDS = ["altered", "cut", "empty"]


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["train", "no-such-preset"], ["no-such-preset", "cartpole"]),
        (["train", "cartpole", "--environment.id", "Chess-v1"], ["Chess-v1", "CartPole-v1"]),
        (["train", "cartpole", "--learning-rat", "1e-3"], ["learning-rat", "learning_rate"]),
        (["train", "cartpole", "--num-envs", "7", "--envs-per-tile", "4"], ["num_envs = 7", "envs_per_tile = 4"]),
        (["train", "--lag", "two"], ["schedule.lag", "two"]),
        (["train", "cartpole", "--act-tasks", "9"], ["act_tasks = 9"]),
        (["train", "cartpole", "--name", "Not/A/Name"], ["name", "Not/A/Name"]),
        (["train", "cartpole", "--policy", "seed_rl"], ["seed_rl", "single_learner_coarse"]),
        (["resume", "no-such-run"], ["no-such-run"]),
        (["show", "no-such-run"], ["no-such-run"]),
        (["evaluate", "no-such-run"], ["no-such-run"]),
        (["gc", "no-such-run"], ["no-such-run"]),
    ],
    ids=" ".join,
)
def test_bad_settings_are_refused_before_anything_starts(tmp_path, arguments, mentioned):
    """The error names the setting, its value and what there is; no server is asked, and nothing is stored."""
    nobody = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_HOME": str(tmp_path / "home")}
    bench = Bench(tmp_path, nobody, scheduler="")
    try:
        bench.penstock(*arguments, "--store", bench.store).refuse(*mentioned, seconds=60)
        assert not Path(bench.store).exists()
    finally:
        bench.close()


def test_bad_preset_files_are_refused_by_name(tmp_path):
    """A preset that is no TOML, or that holds a setting that there is not, is refused by file or field."""
    bench = Bench(tmp_path, {"PREFECT_API_URL": "http://127.0.0.1:1/api"}, scheduler="")
    torn, unknown = tmp_path / "torn.toml", tmp_path / "unknown.toml"
    torn.write_text("[environment\n")
    unknown.write_text("[schedule]\nround_stepz = 3\n")
    try:
        for path, mentioned in ((torn, str(torn)), (unknown, "schedule.round_stepz")):
            bench.penstock("train", str(path), "--store", bench.store).refuse(mentioned, seconds=60)
    finally:
        bench.close()


def test_a_prefect_server_that_nobody_runs_is_said(tmp_path, references):
    """In one line with the address, for a new run and for an evaluation that follows one; nothing is stored."""
    run = references.run(BRIEF)
    bench = Bench(tmp_path, {"PREFECT_API_URL": "http://127.0.0.1:1/api"}, scheduler="")
    try:
        for arguments in (
            ("train", "cartpole", "--store", bench.store),
            ("evaluate", run.name, "--follow", "--store", run.url),
        ):
            bench.penstock(*arguments).refuse("PREFECT_API_URL", "http://127.0.0.1:1/api", seconds=60)
        assert not list(Path(bench.store).rglob("run.json"))
    finally:
        bench.close()


def test_what_is_not_there_is_said(bench, cluster):
    """A store that can't be written, a gang that can't fit, a scheduler that is not there or secret: each is named."""
    blocked = bench.folder / "a-file"
    blocked.write_text("no folder")
    too_many = Settings(tiles=8, envs_per_tile=1, act_tasks=cluster.places + 1)
    store = bench.train("unwritable", BRIEF, store=str(blocked / "runs"))
    gang = bench.train("large", too_many, "--gang-seconds", "5", "--admission-seconds", "20")
    scheduler = bench.train("lonely", BRIEF, "--cluster.scheduler", "tcp://127.0.0.1:1")
    certificates = bench.train("bare", BRIEF, "--cluster.scheduler", "tls://127.0.0.1:1")
    store.refuse(str(blocked))
    gang.refuse("actor=1", "act", "large")
    scheduler.refuse("tcp://127.0.0.1:1")
    certificates.refuse("tls://127.0.0.1:1", "DASK_CONFIG")


@pytest.fixture(scope="module")
def interrupted(references, cluster, flow_environment, tmp_path_factory):
    """A run whose flow and members were killed in its second stage, with shards that no commit names."""
    bench = Bench(tmp_path_factory.mktemp("interrupted"), flow_environment, cluster.address)
    settings = replace(BRIEF, rounds=20)
    flow, run = bench.train("torn", settings), bench.run("torn")
    run.wait_for_round(settings.rounds + 6, flow)
    flow.kill()
    cluster.members.wait_idle()
    return settings, Path(bench.store) / "torn"


@pytest.fixture
def copied(bench, interrupted):
    """Makes copies of it, runs of their own, that a test may damage."""
    settings, original = interrupted

    def copy(name):
        shutil.copytree(original, Path(bench.store) / name)
        return bench.run(name), Path(bench.store) / name

    return settings, copy


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_shards(bench, references, copied, kind):
    """An uncommitted shard that was damaged is acted again; a committed one is told apart, and hinders no resume."""
    settings, copy = copied
    run, folder = copy(f"shards-{kind}")
    committed = ShardRef.from_json(run.commits()[0]["shards"][5])
    uncommitted = next(name for name in run.store.list("shards/00000001/") if "/00000022-0001-" in name)
    damage(folder, committed.name, kind)
    damage(folder, uncommitted, kind)
    bench.resume(run.name).succeed()
    with pytest.raises(CorruptObjectError, match=committed.name):
        decode_shard(run.store.view(committed.name), None, committed.name, committed.digest)
    expected = references.content(settings)
    (folder / committed.name).write_bytes(expected[committed.name])
    assert_same(run, expected)


def test_damage_that_can_not_be_made_good_is_said(bench, copied):
    """A damaged checkpoint, commit, snapshot, state or run.json ends a resume with an error that names it."""
    _, copy = copied
    refused = []
    for kind in KINDS:
        for what in ("checkpoint", "commit", "run"):
            run, folder = copy(f"{what}-{kind}")
            named = {"checkpoint": run.commits()[0]["checkpoint"]["name"], "commit": "commits/00000000.json"}
            name = named.get(what, "run.json")
            damage(folder, name, kind)
            refused.append((run, name))
    for what in ("snapshots", "states"):
        run, folder = copy(f"{what}-altered")
        name = run.commits()[0][what][0]["name"]
        # As if the stage had not begun: so the members need what the commit before it names.
        for begun in [*run.store.list("shards/00000001/"), *run.store.list("states/00000001/")]:
            (folder / begun).unlink()
        damage(folder, name, "altered")
        refused.append((run, name))
    for first in range(0, len(refused), 3):
        flows = [(bench.resume(run.name), name) for run, name in refused[first : first + 3]]
        for flow, name in flows:
            flow.refuse(name)
