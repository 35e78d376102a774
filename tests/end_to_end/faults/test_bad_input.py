"""Bad settings, missing services and damaged files end a command with one error that names them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import ShardRef, parse_snapshot_name
from penstock.storage.shards.codec import decode_shard

from ...support.stored.stored_run import assert_same, damage
from ..conftest import BRIEF, Bench, Settings

KINDS = ["altered", "cut", "empty"]


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["train", "no-such-preset"], ["no-such-preset", "cartpole"]),
        (["train", "cartpole", "--environment.id", "Chess-v1"], ["Chess-v1", "`penstock envs` lists all"]),
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
        (["runs"], ["there is no folder", "--store"]),
        pytest.param(
            ["train", "cartpole", "--device", "cuda"],
            ["device = 'cuda'", "no CUDA device", "auto"],
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
    ids=" ".join,
)
def test_bad_settings_are_refused_before_anything_starts(tmp_path, arguments, mentioned):
    """The error names the setting, its value and what there is; no server is asked, and nothing is stored."""
    unreachable = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_HOME": str(tmp_path / "home")}
    bench = Bench(tmp_path, unreachable, scheduler="")
    try:
        bench.penstock(*arguments, "--store", bench.store).refuse(*mentioned)
        assert not Path(bench.store).exists()
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("arguments", "environment", "mentioned"),
    [
        (["--scheduler", "tcp://127.0.0.1:1"], {}, ["tcp://127.0.0.1:1", "Connection refused", "dask scheduler"]),
        (["--scheduler", "nowhere"], {}, ["'nowhere'", "with a port"]),
        (["--cluster.schedulers.act", "tcp://127.0.0.1:1"], {}, ["tcp://127.0.0.1:1", "Connection refused"]),
        (["--store", "s3://bucket/runs"], {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, ["AWS_ENDPOINT_URL", "refused"]),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else "",
)
def test_unreachable_services_are_refused_before_prefect_is_asked(tmp_path, arguments, environment, mentioned):
    """The error names the scheduler or store, though Prefect's server, which is asked next, can't be reached either."""
    unreachable = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    bench = Bench(tmp_path, {**unreachable, **environment}, scheduler="")
    try:
        store = () if "--store" in arguments else ("--store", bench.store)
        bench.penstock("train", "cartpole", *arguments, *store).refuse(*mentioned)
        if not store:
            bench.penstock("resume", "c1", *arguments).refuse(*mentioned)
    finally:
        bench.close()


@pytest.mark.parametrize("arguments", [["train", "cartpole"], ["runs"], ["check-algorithm", "ppo"]], ids=" ".join)
def test_an_unknown_level_of_kernels_is_refused_by_every_command(tmp_path, arguments):
    """The bytes of a run depend on it, so a misspelt name must not stand for the default."""
    bench = Bench(tmp_path, {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PENSTOCK_KERNELS": "avx1024"}, scheduler="")
    try:
        bench.penstock(*arguments).refuse("PENSTOCK_KERNELS is 'avx1024', expected one of torch, base")
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
            bench.penstock("train", str(path), "--store", bench.store).refuse(mentioned)
    finally:
        bench.close()


@pytest.mark.slow
def test_a_missing_prefect_server_is_named(tmp_path, references):
    """The error of `train` and of `evaluate --follow` is one line with the address; nothing is stored."""
    run = references.run(BRIEF)
    bench = Bench(tmp_path, {"PREFECT_API_URL": "http://127.0.0.1:1/api"}, scheduler="")
    try:
        for arguments in (
            ("train", "cartpole", "--store", bench.store),
            ("evaluate", run.name, "--follow", "--store", run.url),
        ):
            bench.penstock(*arguments).refuse("PREFECT_API_URL", "http://127.0.0.1:1/api")
        assert not list(Path(bench.store).rglob("run.json"))
    finally:
        bench.close()


@pytest.mark.slow
def test_missing_services_are_named(bench, cluster):
    """A read-only store, a gang that cannot fit, a scheduler that is absent or needs TLS: each is named."""
    blocked = bench.folder / "a-file"
    blocked.write_text("no folder")
    too_many = Settings(tiles=8, envs_per_tile=1, act_tasks=cluster.places + 1)
    store = bench.train("unwritable", BRIEF, store=str(blocked / "runs"))
    gang = bench.train("large", too_many, "--gang-seconds", "5", "--admission-seconds", "2")
    scheduler = bench.train("lonely", BRIEF, "--cluster.scheduler", "tcp://127.0.0.1:1")
    secured = cluster.address.replace("tcp://", "tls://")
    certificates = bench.train("bare", BRIEF, "--cluster.scheduler", secured)
    store.refuse(str(blocked))
    gang.refuse("actor=1", "act", "large")
    scheduler.refuse("tcp://127.0.0.1:1")
    certificates.refuse(secured, "DASK_CONFIG")


@pytest.fixture(scope="module")
def interrupted(references, cluster, flow_environment, tmp_path_factory):
    """Return a run that was killed in its second stage, with shards that no commit names."""
    bench = Bench(tmp_path_factory.mktemp("interrupted"), flow_environment, cluster.address)
    settings = replace(BRIEF, rounds=20)
    flow, run = bench.train("torn", settings), bench.run("torn")
    run.wait_for_round(settings.rounds + 6, flow)
    flow.kill()
    cluster.members.wait_idle()
    return settings, Path(bench.store) / "torn"


@pytest.fixture
def copied(bench, interrupted):
    """Return a function that copies that run, for a test to damage."""
    settings, original = interrupted

    def copy(name):
        shutil.copytree(original, Path(bench.store) / name)
        return bench.run(name), Path(bench.store) / name

    return settings, copy


@pytest.mark.parametrize("kind", ["altered", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])])
def test_damaged_shards_are_acted_again_or_named(bench, references, copied, kind):
    """A damaged uncommitted shard is acted again; a committed one is an error when read, and prevents no resume."""
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


def test_an_unfinished_stage_that_a_power_cut_emptied_is_made_again(bench, references, copied):
    """All its files have names and no bytes, and there are foreign files: one resume ends with the same bytes."""
    settings, copy = copied
    run, folder = copy("power-cut")
    committed = run.commits()[0]
    emptied = [
        *run.store.list("shards/00000001/"),
        *run.store.list("states/00000001/"),
        *(name for name in run.store.list("snapshots/") if parse_snapshot_name(name).version > committed["version"]),
    ]
    assert {name.partition("/")[0] for name in emptied} == {"shards", "states", "snapshots"}
    for name in emptied:
        (folder / name).write_bytes(b"")
    foreign = [
        folder / "shards/00000001/.DS_Store",
        folder / "states/00000001/.nfs0001",
        folder / "snapshots/notes.txt",
    ]
    for path in foreign:
        path.write_bytes(b"another program's")
    flow = bench.resume(run.name)
    flow.succeed()
    said = re.search(r"(\d+) of \d+ objects of the unfinished stage were damaged", flow.output)
    assert said, flow.output
    assert int(said[1]) == len(emptied)  # of more, if the flow had stored the stage's checkpoint when it was killed
    for path in foreign:
        path.unlink()
    assert_same(run, references.content(settings))


def test_verify_lists_what_is_damaged_and_repairs_what_can_be_made_again(bench, copied):
    """The exit status says whether all is well; a damaged object of a commit stays until it is restored."""
    _, copy = copied
    run, folder = copy("verified")
    bench.penstock("verify", run.name, "--store", bench.store).succeed()
    committed = run.commits()[0]["shards"][0]["name"]
    uncommitted = run.store.list("shards/00000001/")[0]
    kept = (folder / committed).read_bytes()
    for name in (committed, uncommitted):
        damage(folder, name, "altered")
    for options, mentioned in (
        ((), (committed, uncommitted, "1 damaged or missing", "1 damaged objects are named by no commit", "--repair")),
        (("--repair",), ("1 damaged", "1 removed")),
    ):
        found = bench.penstock("verify", run.name, "--store", bench.store, *options)
        assert found.wait() == 1
        assert "Traceback" not in found.output
        assert [text for text in mentioned if text not in found.stdout] == []
    assert not run.store.exists(uncommitted)
    (folder / committed).write_bytes(kept)
    said = bench.penstock("verify", run.name, "--store", bench.store, "--json").succeed()
    assert json.loads(said)["faults"] == []


@pytest.mark.slow
def test_damage_that_cannot_be_repaired_is_named(bench, copied):
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
