"""`penstock replay` reads the selected rows, survives kills without a changed byte, and names what it refuses."""

from __future__ import annotations

import json
import os
import signal

import pytest

from penstock.storage.errors import ConfigError
from penstock.storage.refs import ShardRef
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.data.replay.plan import make_plan
from penstock.tasks.driver.run import describe_run
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.replay import build_replay_config

from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import BRIEF, Bench, Settings

STAGES = 6
PORTIONS = ("--rounds-per-stage", "15", "--max-stages", str(STAGES), "--shards-per-round", "5", "--hidden", "[8]")
FEW = ("--rounds-per-stage", "1", "--max-stages", "1", "--evaluation-episodes", "4")


def replay(bench, url, name, *options):
    where = ("--store", url, "--scheduler", bench.scheduler, "--lease-seconds", "6", "--evaluation-episodes", "4")
    return bench.penstock("replay", name, *options, *where)


def plan(url, runs, **source):
    config = build_replay_config({"source": {"runs": list(runs), **source}})
    return make_plan(open_store(url), config)[0]


def names(found):
    return [(found[index].run, found[index].ref.name) for index in range(len(found))]


def shards_of(run, stages):
    return [ShardRef.from_json(ref) for stage in stages for ref in run.commits()[stage]["shards"]]


@pytest.mark.slow
def test_a_killed_replay_ends_with_the_same_bytes(bench, cluster, references):
    """After its flow and its learner were killed, a replay resumes from its last commit over the same rows."""
    source = references.run(BRIEF)
    whole, killed = StoredRun(source.url, "whole"), StoredRun(source.url, "killed")
    replay(bench, source.url, "whole", "--from", source.name, *PORTIONS).succeed()

    flow = replay(bench, source.url, "killed", "--from", source.name, *PORTIONS)
    killed.wait_for_commit(0, flow)
    flow.kill()
    cluster.members.wait_idle()
    flow = bench.resume("killed", store=source.url)
    killed.wait_for_commit(2, flow)
    os.kill(cluster.members.pid_of("learn-0", "killed", flow), signal.SIGKILL)
    flow.succeed()

    commits = killed.commits()
    assert len(commits) == STAGES
    rows = BRIEF.envs_per_tile * BRIEF.round_steps
    assert [commit["env_steps"] for commit in commits] == [15 * 5 * rows * (stage + 1) for stage in range(STAGES)]
    assert all(commit["shards"] == commit["states"] == [] for commit in commits)
    assert commits[-1]["metrics"]["negative_log_likelihood"] < commits[0]["metrics"]["negative_log_likelihood"]
    assert_same(killed, whole.content())


def good_rows(run, min_return):
    """Return by (round, tile) the rows of whole episodes of at least that return, found by brute force."""
    rewards, ended = {}, {}
    shards = {}
    for ref in shards_of(run, range(BRIEF.stages)):
        shard = decode_shard(run.store.view(ref.name), None, ref.name, ref.digest)
        columns = {name: shard.columns[name].reshape(-1) for name in ("env_id", "episode_id", "reward")}
        episodes = list(zip(columns["env_id"].tolist(), columns["episode_id"].tolist(), strict=True))
        over = (shard.columns["terminated"] | shard.columns["truncated"]).reshape(-1)
        for episode, reward, end in zip(episodes, columns["reward"].tolist(), over.tolist(), strict=True):
            rewards[episode] = rewards.get(episode, 0.0) + reward
            ended[episode] = ended.get(episode, False) or bool(end)
        shards[ref.round, ref.tile] = episodes
    good = {episode for episode, total in rewards.items() if ended[episode] and total >= min_return}
    found = {key: [row for row, episode in enumerate(rows) if episode in good] for key, rows in shards.items()}
    return {key: rows for key, rows in found.items() if rows}


def test_a_selection_has_exactly_the_requested_rows(bench, references):
    """Rows are selected by stage, by version of a run with lag, and by return: whole episodes, also across shards."""
    source = references.run(BRIEF)
    lagging = bench.train("lagging", Settings(lag=2, rounds=6, tiles=2, act_tasks=1), store=source.url)
    lagging.succeed()
    runs = {source.name: source, "lagging": StoredRun(source.url, "lagging")}
    staged = plan(source.url, runs, stages={"first": 1, "last": 1})
    assert names(staged) == [(name, ref.name) for name, run in runs.items() for ref in shards_of(run, [1])]
    assert all(staged[index].segments is None for index in range(len(staged)))
    by_version = plan(source.url, runs, versions={"first": 3, "last": 4})
    assert names(by_version) == [
        (name, ref.name)
        for name, run in runs.items()
        for ref in shards_of(run, range(2))
        if max(0, ref.round - (2 if name == "lagging" else 0)) in {3, 4}
    ]
    by_return = plan(source.url, runs, min_return=30.0)
    found = {name: {} for name in runs}
    for index in range(len(by_return)):
        planned = by_return[index]
        rows = planned.row_ids(BRIEF.round_steps, BRIEF.envs_per_tile)
        found[planned.run][planned.ref.round, planned.ref.tile] = rows.tolist()
    assert found == {name: good_rows(run, 30.0) for name, run in runs.items()}
    assert any(len(rows) < BRIEF.round_steps * BRIEF.envs_per_tile for rows in found[source.name].values())
    with pytest.raises(ConfigError, match=r"stages '0:0', versions '8:' and a return of at least 30"):
        plan(source.url, runs, stages={"last": 0}, versions={"first": 8}, min_return=30)


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["a", "--from", "no-such-run"], ["no-such-run"]),
        (["a", "--from", "b", "--stages", "3-4"], ["--stages 3-4", "FIRST:LAST"]),
        (["a", "--from", "b", "--stages", "4:3"], ["source.stages", "4:3"]),
        (["a", "--from", "b", "c", "b"], ["b more than once"]),
        (["a", "--from", "b", "--environment.id", "Pendulum-v1"], ["environment", "runs that are read"]),
        (["a", "--from", "b", "--lag", "1"], ["schedule.lag = 1"]),
        (["a", "--from", "b", "--epochz", "1"], ["epochz", "epochs"]),
        (["a", "--from", "b", "--preset", "halfcheetah"], ["halfcheetah-iql", "penstock train halfcheetah"]),
        (["a", "--from", "b", "--preset", "halfcheetah-iql", "--epochz", "1"], ["epochz", "epochs"]),
        (["a", "--from", "b", "--policy", "single_learner_coarse"], ["single_learner_coarse", "learner_over_storage"]),
    ],
    ids=" ".join,
)
def test_bad_settings_are_refused_before_anything_starts(tmp_path, arguments, mentioned):
    """The error names the setting and its value; no server is asked, and nothing is stored."""
    unreachable = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_HOME": str(tmp_path / "home")}
    bench = Bench(tmp_path, unreachable, scheduler="")
    try:
        bench.penstock("replay", *arguments, "--store", bench.store).refuse(*mentioned)
        assert not (tmp_path / "runs").exists()
    finally:
        bench.close()


def test_sources_that_do_not_fit_are_refused_by_name(references):
    """Missing stages, another environment, and a replay, which has no shards, are refused by name."""
    source = references.run(BRIEF)
    root = open_store(source.url)
    with pytest.raises(ConfigError, match=r"source.stages = '7:'.*has committed stages 0 to 1"):
        plan(source.url, [source.name], stages={"first": 7})
    heavy = build_config({"environment": {"settings": {"gravity": 20.0}}})
    RunFolder(root, "heavy").create(describe_run(heavy))
    with pytest.raises(ConfigError, match="run 'heavy' has committed nothing"):
        plan(source.url, ["heavy"])
    RunFolder(root, "heavy").store.write("commits/00000000.json", [source.store.read("commits/00000000.json")])
    with pytest.raises(ConfigError, match=r"'heavy' has environment .*gravity.*one environment"):
        plan(source.url, [source.name, "heavy"])
    RunFolder(root, "cloned").create(describe_run(build_replay_config({"source": {"runs": [source.name]}})))
    with pytest.raises(ConfigError, match="'cloned' is a replay"):
        plan(source.url, ["cloned"])


@pytest.mark.slow
def test_a_tight_memory_budget_is_reported_once_and_changes_no_byte(bench, references):
    """A replay whose rounds exceed its memory budget ends as one with enough memory; the timings record both."""
    source = references.run(BRIEF)
    options = ("--from", source.name, "--rounds-per-stage", "2", "--max-stages", "2", "--shards-per-round", "90")
    replay(bench, source.url, "roomy", *options).succeed()
    printed = replay(bench, source.url, "tight", *options, "--read-budget-bytes", str(1 << 20)).succeed()
    assert printed.count(f"cluster.read_budget_bytes is {1 << 20}") == 1
    roomy, tight = StoredRun(source.url, "roomy"), StoredRun(source.url, "tight")
    assert_same(tight, roomy.content())
    largest = max(shard.nbytes for shard in shards_of(source, range(BRIEF.stages)))
    for run, budget_bytes in ((roomy, 256 << 20), (tight, 1 << 20)):
        for timings in run.timings():
            (learned,) = timings["learn"]
            assert learned["pipeline"]["shards"] == 180
            assert learned["pipeline"]["peak_bytes"] <= budget_bytes + largest
            assert learned["cache"]["misses"] == 0


@pytest.mark.slow
def test_a_damaged_shard_is_named_and_stays(bench, references):
    """The shard belongs to another run, so it is not removed; with its bytes restored, the replay resumes."""
    source = references.run(BRIEF)
    victim = shards_of(source, [0])[3]
    intact = source.store.read(victim.name)
    source.store.write(victim.name, [intact[: len(intact) // 2]])
    try:
        damaged = replay(bench, source.url, "damaged", "--from", source.name, "--shards-per-round", "24", *FEW)
        damaged.refuse(victim.name, source.name)
        assert source.store.exists(victim.name)
    finally:
        source.store.write(victim.name, [intact])
    bench.resume("damaged", store=source.url).succeed()
    said = json.loads(StoredRun(source.url, "damaged").store.read("run.json"))
    assert said["reads"]["plan"] == f"replay/plan-{said['config']['plan']}.arrow"
    assert said["reads"]["sources"] == [
        {"run": source.name, "stages": [0, 1], "commit": source.folder.log.digest_of(1)},
    ]
