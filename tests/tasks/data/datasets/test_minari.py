"""Runs to Minari datasets and back: whole episodes, every value, and what has no end is said to have none."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from typer.testing import CliRunner

from penstock.flows.cli.main import app
from penstock.storage.errors import ConfigError, CorruptObjectError, LeaseHeldError, PenstockError, RunExistsError
from penstock.storage.refs import ShardRef, shard_name
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.reader_claims import keep_shards_from
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import ShardColumns, ShardInfo, allocate, decode_shard, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.open import open_store
from penstock.tasks.data.datasets.minari import _registered, export_run, import_dataset, spaces_of
from penstock.tasks.data.replay.plan import make_plan
from penstock.tasks.setup.config.replay import build_replay_config

from ....support.environments.structured_environments import SPACES, registered_id
from ....support.stored.synthetic_shards import commit_stage

GOLDEN = Path(__file__).parents[3] / "golden"
TILES, ENVS, STEPS, ROUNDS = 2, 3, 10, 4
OBSERVATION = spaces.Box(0, 255, (5, 6), np.uint8)
ACTION = spaces.Discrete(7)
BOX = spaces.Box(-1, 1, (3,), np.float64)
COLUMNS = {
    "observation": Spec("uint8", (5, 6)),
    "reward": Spec("float32"),
    "terminated": Spec("uint8"),
    "truncated": Spec("uint8"),
    "action": Spec("int64"),
    "log_probability": Spec("float32"),
    "mask": Spec("bool", (7,)),
    "env_id": Spec("int32"),
    "episode_id": Spec("int32"),
    "policy_version": Spec("int32"),
}


def make_lane(rng, env):
    """All rows of an environment, its observations afterwards, and where its episodes end."""
    total = STEPS * ROUNDS
    rows = {
        name: (rng.random((total, *spec.shape)) * 100).astype(spec.dtype)
        for name, spec in COLUMNS.items()
        if name not in {"terminated", "truncated"}
    }
    rows["mask"] = rng.random((total, 7)) < 0.5
    rows["terminated"], rows["truncated"] = np.zeros((2, total), np.uint8)
    ends = np.union1d(np.flatnonzero(rng.random(total) < 0.08), [2 * STEPS - 1] if env == 0 else []).astype(np.int64)
    rows[["terminated", "truncated"][env % 2]][ends] = 1
    rows["env_id"][:] = env
    rows["episode_id"][:] = np.searchsorted(ends, np.arange(total))
    rows["policy_version"][:] = np.arange(total) // STEPS
    after = np.concatenate([rows["observation"][1:], rows["observation"][:1]])
    after[ends] = rng.integers(0, 255, (len(ends), 5, 6))
    return rows, after, ends


@pytest.fixture
def made(tmp_path):
    """A run whose episodes cross shards, and its lanes."""
    rng = np.random.default_rng(0)
    lanes = [make_lane(rng, env) for env in range(TILES * ENVS)]
    run = RunFolder(open_store(tmp_path / "runs"), "made")
    run.create({"format": "penstock-run/1", "identity": {}})
    refs = {0: [], 1: []}
    for round_ in range(ROUNDS):
        stage = round_ // 2
        for tile in range(TILES):
            arrays = allocate(COLUMNS, STEPS, ENVS)
            bootstrap = {}
            ended = []
            for env in range(ENVS):
                rows, after, ends = lanes[tile * ENVS + env]
                for name, array in arrays.items():
                    array[:, env] = rows[name][round_ * STEPS : (round_ + 1) * STEPS]
                for step in {*ends.tolist(), (round_ + 1) * STEPS - 1}:
                    if step // STEPS == round_:
                        bootstrap[step % STEPS * ENVS + env] = after[step]
                for number, step in enumerate(ends.tolist()):
                    if step // STEPS == round_:
                        length = step - (ends[number - 1] if number else -1)
                        flags = rows["terminated"][step], rows["truncated"][step]
                        ended.append((step % STEPS * ENVS + env, tile * ENVS + env, number, length, *flags))
            kept = sorted(bootstrap)
            row, env_id, episode_id, length, *flags = np.ascontiguousarray(
                np.array(sorted(ended), np.int64).reshape(-1, 6).T
            )
            index = Episodes.from_flags(
                row, env_id, episode_id, length, np.zeros(len(row)), *flags, np.zeros_like(row), np.zeros_like(row)
            )
            info = ShardInfo(0, stage, round_, tile, STEPS, ENVS, round_, round_, "Made-v0", {}, index)
            stacked = np.stack([bootstrap[row] for row in kept])
            shard = encode_shard(ShardColumns(COLUMNS, arrays), np.array(kept), stacked, info)
            name = shard_name(stage, 0, round_, tile, shard.digest)
            run.store.write(name, shard.parts)
            refs[stage].append(ShardRef(name, shard.digest, shard.nbytes, round_, tile, STEPS * ENVS))
    for stage, made_in in refs.items():
        commit_stage(run, stage, made_in)
    return run, lanes


def same(first, second):
    if isinstance(first, dict):
        assert set(first) == set(second)
        for name in first:
            same(first[name], second[name])
    else:
        first, second = np.asarray(first), np.asarray(second)
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)


def episodes_of(path):
    return list(minari.MinariDataset(path / "data").iterate_episodes())


def same_episodes(first, second):
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        for part in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
            same(getattr(one, part), getattr(other, part))


def test_an_export_has_every_episode_whole(made, tmp_path):
    """Each episode of each environment, over however many shards, is `==` what was acted."""
    run, lanes = made
    exported = export_run(run, tmp_path / "dataset", OBSERVATION, ACTION)
    episodes = {
        (int(e.infos["env_id"][0]), int(e.infos["episode_id"][0])): e for e in episodes_of(tmp_path / "dataset")
    }
    expected_cut = 0
    for env, (rows, after, ends) in enumerate(lanes):
        starts = [0, *(ends + 1).tolist()]
        for number, start in enumerate(starts):
            stop = int(ends[number]) + 1 if number < len(ends) else STEPS * ROUNDS
            if start == stop:
                continue
            episode = episodes.pop((env, number))
            same(episode.observations, np.concatenate([rows["observation"][start:stop], after[stop - 1 : stop]]))
            same(episode.actions, rows["action"][start:stop])
            same(episode.rewards, rows["reward"][start:stop])
            same(episode.infos["mask"][:-1], rows["mask"][start:stop])
            same(episode.infos["log_probability"][:-1], rows["log_probability"][start:stop])
            cut = number == len(ends)
            expected_cut += cut
            assert episode.infos["cut"].tolist() == [False] * (stop - start - 1) + [cut, False]
            same(episode.terminations, rows["terminated"][start:stop] != 0)
            assert episode.truncations[-1] == (cut or bool(rows["truncated"][stop - 1]))
    assert not episodes
    assert (exported.cut_episodes, exported.steps) == (expected_cut, TILES * ENVS * STEPS * ROUNDS)


def test_there_and_back_again_nothing_is_lost(made, tmp_path):
    """A dataset that was imported and exported is `==` the first one; the run that holds it is one as any other."""
    run, _ = made
    first = export_run(run, tmp_path / "first", OBSERVATION, ACTION)
    again = RunFolder(open_store(tmp_path / "runs"), "again")
    assert import_dataset(again, tmp_path / "first") == first
    assert again.log.verify(again.genesis()) == 1
    assert export_run(again, tmp_path / "second", OBSERVATION, ACTION) == first
    same_episodes(episodes_of(tmp_path / "first"), episodes_of(tmp_path / "second"))
    assert spaces_of(again) == (OBSERVATION, ACTION)
    with pytest.raises(RunExistsError, match="'again'"):
        import_dataset(again, tmp_path / "first")
    again.store.delete(["commits/00000000.json", "latest.json"])  # as a kill before the commit leaves it
    assert import_dataset(again, tmp_path / "first") == first
    (ref,) = again.log.shard_refs()
    info = decode_shard(again.store.view(ref.name), None, ref.name, ref.digest).info
    assert info.episodes.length.sum() == ref.rows == first.steps
    assert (info.min_policy_version, info.max_policy_version) == (0, ROUNDS - 1)


def test_a_dataset_of_others_comes_back_as_it_was(tmp_path):
    """Nested infos, an info after the last step, rewards of another type, vectors for actions."""
    rng = np.random.default_rng(1)
    (tmp_path / "theirs").mkdir()
    box = BOX
    storage = minari.dataset.minari_storage.MinariStorage.new(
        tmp_path / "theirs" / "data", observation_space=box, action_space=box, jpeg_encoding=False
    )
    storage.update_metadata({"dataset_id": "theirs-v0", "minari_version": minari.__version__})
    storage.update_episodes(
        minari.data_collector.EpisodeBuffer(
            id=index,
            observations=rng.random((length + 1, 3)),
            actions=rng.random((length, 3)),
            rewards=rng.random(length),
            terminations=np.arange(length) == length - 1,
            truncations=np.zeros(length, bool),
            infos={"speed": rng.random(length + 1), "body": {"at": rng.random((length + 1, 2)).astype(np.float32)}},
        )
        for index, length in enumerate([1, 20, 7])
    )
    run = RunFolder(open_store(tmp_path / "runs"), "theirs")
    assert import_dataset(run, tmp_path / "theirs").cut_episodes == 0
    replay = build_replay_config({"source": {"runs": ["theirs"]}})
    with pytest.raises(ConfigError, match=r"source.runs: 'theirs' was imported, .*; read its rows with a dataset"):
        make_plan(open_store(tmp_path / "runs"), replay)
    export_run(run, tmp_path / "back", box, box)
    theirs, back = episodes_of(tmp_path / "theirs"), episodes_of(tmp_path / "back")
    for episode in back:
        for name in ("cut", "env_id", "episode_id", "policy_version"):
            del episode.infos[name]
    same_episodes(theirs, back)


STRUCTURED = spaces.Dict(
    gear=spaces.Discrete(3, start=2),
    arm=spaces.Tuple([spaces.Box(0, 200, (2,), np.uint8), spaces.MultiBinary(2)]),
)


def test_structured_actions_are_vectors_in_shards_and_themselves_in_datasets(tmp_path):
    """A Dict with a Tuple in it: imported as one column, from which the same actions are exported."""
    (tmp_path / "theirs").mkdir()
    storage = minari.dataset.minari_storage.MinariStorage.new(
        tmp_path / "theirs" / "data", observation_space=BOX, action_space=STRUCTURED, jpeg_encoding=False
    )
    storage.update_metadata({"dataset_id": "theirs-v0", "minari_version": minari.__version__})
    rng, length = np.random.default_rng(1), 20
    actions = {
        "gear": rng.integers(2, 5, length),
        "arm": (rng.integers(0, 201, (length, 2)).astype(np.uint8), rng.integers(0, 2, (length, 2)).astype(np.int8)),
    }
    storage.update_episodes(
        [
            minari.data_collector.EpisodeBuffer(
                id=0,
                observations=rng.random((length + 1, 3)),
                actions=actions,
                rewards=rng.random(length),
                terminations=np.arange(length) == length - 1,
                truncations=np.zeros(length, bool),
                infos={},
            )
        ]
    )
    run = RunFolder(open_store(tmp_path / "runs"), "theirs")
    import_dataset(run, tmp_path / "theirs")
    (ref,) = run.log.shard_refs()
    column = decode_shard(run.store.view(ref.name), None, ref.name, ref.digest).columns["action"]
    assert (column.dtype, column.shape[-1]) == (np.float32, 5)
    export_run(run, tmp_path / "back", *spaces_of(run))
    (back,) = episodes_of(tmp_path / "back")
    same(back.actions["gear"], actions["gear"])
    for mine, theirs in zip(back.actions["arm"], actions["arm"], strict=True):
        same(mine, theirs)


def test_choices_are_exported_as_the_environment_counts_them(made, tmp_path):
    """A run stores them from 0. A dataset that was imported keeps its own; a name with a dot is no id of Minari's."""
    run, lanes = made
    space = spaces.Discrete(7, start=5)
    export_run(run, tmp_path / "own", OBSERVATION, space)
    stored = np.concatenate([rows["action"] for rows, _, _ in lanes])
    exported = np.concatenate([episode.actions for episode in episodes_of(tmp_path / "own")])
    assert np.array_equal(np.sort(exported), np.sort(stored + 5))
    again = RunFolder(open_store(tmp_path / "runs"), "made.again")
    import_dataset(again, tmp_path / "own")
    assert spaces_of(again)[1] == space
    export_run(again, tmp_path / "back", *spaces_of(again))
    same_episodes(episodes_of(tmp_path / "own"), episodes_of(tmp_path / "back"))
    assert minari.MinariDataset(tmp_path / "back" / "data").id == "penstock/made-again-v0"


def test_a_replay_is_not_exported(tmp_path):
    with pytest.raises(ConfigError, match="'replayed' is a replay, which stores no shards; name the runs that it read"):
        export_run(RunFolder(open_store(GOLDEN), "replayed"), tmp_path / "out", OBSERVATION, ACTION)
    assert not (tmp_path / "out").exists()


def test_a_run_of_structured_actions_exports_the_environments_own(tmp_path):
    """Its pool takes vectors, and its data set has the environment's space."""
    run = RunFolder(open_store(tmp_path), "hybrid")
    environment = {"id": registered_id("Hybrid"), "num_envs": 8, "envs_per_tile": 8}
    run.create({"format": "penstock-run/1", "config": {"name": "hybrid", "environment": environment}})
    assert spaces_of(run)[1] == SPACES["Hybrid"]


@pytest.mark.parametrize(
    ("episodes", "said"),
    [
        (
            [{"terminations": [True, False, True]}],
            "episode 0 of the dataset terminates or is truncated before its last",
        ),
        ([{}, {"rewards": [0.0, np.nan, 1.0]}], "episode 1 of the dataset has the reward nan, expected finite numbers"),
        ([{"infos": {"k": np.zeros(4)}}, {"infos": {"k": np.zeros(4, int)}}], "'k' is int64 .* in one and float64"),
        (
            [{"infos": {"env_id": np.zeros((4, 2), int)}}],
            r"info 'env_id' of int64 \[4, 2\], expected one whole number a",
        ),
        (
            [{"infos": {"episode_id": np.full(4, 7.5)}}],
            r"info 'episode_id' of float64 \[4\], expected one whole number",
        ),
        (
            [{"infos": {"next_observation": np.zeros(4)}}],
            "'next_observation' .* readers compute it from the observations",
        ),
        ([{"infos": {"cut": np.zeros(4)}}], r"info 'cut' of float64 \[4\], expected one boolean a step"),
    ],
)
def test_datasets_that_are_no_whole_episodes_are_refused(tmp_path, episodes, said):
    """By the episode: an import would store what no export could read."""
    (tmp_path / "theirs").mkdir()
    storage = minari.dataset.minari_storage.MinariStorage.new(
        tmp_path / "theirs" / "data", observation_space=BOX, action_space=BOX, jpeg_encoding=False
    )
    storage.update_metadata({"dataset_id": "theirs-v0", "minari_version": minari.__version__})
    plain = {"rewards": np.zeros(3), "terminations": [False, False, True], "truncations": [False] * 3, "infos": {}}
    storage.update_episodes(
        [
            minari.data_collector.EpisodeBuffer(
                id=index,
                observations=np.zeros((4, 3)),
                actions=np.zeros((3, 3)),
                **{name: value if name == "infos" else np.asarray(value) for name, value in {**plain, **own}.items()},
            )
            for index, own in enumerate(episodes)
        ]
    )
    with pytest.raises(ConfigError, match=said):
        import_dataset(RunFolder(open_store(tmp_path / "runs"), "theirs"), tmp_path / "theirs")


def test_a_run_without_commits_or_shards_is_not_exported(made, tmp_path):
    """A dataset of nothing could not be read, and one of a part would not say so."""
    empty = RunFolder(open_store(tmp_path), "empty")
    empty.create({})
    with pytest.raises(ConfigError, match="run 'empty' has committed nothing yet"):
        export_run(empty, tmp_path / "out", OBSERVATION, ACTION)
    run, _ = made
    keep_shards_from(run.store, 1)
    with pytest.raises(ConfigError, match=r"has no shards before stage 1, .* --from-stage 1 exports the others"):
        export_run(run, tmp_path / "out", OBSERVATION, ACTION)
    with pytest.raises(ConfigError, match=r"from stage 2: run 'made' has committed stages 0 to 1"):
        export_run(run, tmp_path / "out", OBSERVATION, ACTION, from_stage=2)
    assert not (tmp_path / "out").exists()


def test_an_export_of_later_stages_has_their_whole_episodes_alone(made, tmp_path):
    """Shards were dropped: what remains is those episodes that began after them, also right after them."""
    run, lanes = made
    keep_shards_from(run.store, 1)
    exported = export_run(run, tmp_path / "dataset", OBSERVATION, ACTION, from_stage=1)
    first = 2 * STEPS
    expected = {}
    for env, (rows, _, ends) in enumerate(lanes):
        starts = [start for start in [0, *(ends + 1).tolist()] if first <= start < STEPS * ROUNDS]
        expected |= {(env, int(rows["episode_id"][start])): rows["reward"][start:] for start in starts}
    assert any(first - 1 in ends for _, _, ends in lanes), "an episode must begin with the first shard that is read"
    episodes = episodes_of(tmp_path / "dataset")
    assert len(episodes) == len(expected) == exported.episodes
    for episode in episodes:
        rewards = expected[int(episode.infos["env_id"][0]), int(episode.infos["episode_id"][0])]
        same(episode.rewards, rewards[: len(episode.rewards)])
    assert exported.steps == sum(len(episode.rewards) for episode in episodes)


def test_of_two_exports_into_one_folder_one_is_refused(made, tmp_path):
    """Otherwise the one would give the other's half-written files its own name."""
    run, _ = made
    refused = []

    def meanwhile(*_: int) -> None:
        if not refused:
            with pytest.raises(ConfigError, match="another export writes into"):
                export_run(run, tmp_path / "out", OBSERVATION, ACTION)
            refused.append(True)

    exported = export_run(run, tmp_path / "out", OBSERVATION, ACTION, on_progress=meanwhile)
    assert refused
    assert len(episodes_of(tmp_path / "out")) == exported.episodes


def test_an_export_to_a_full_disk_is_one_message(made, tmp_path, monkeypatch):
    """Whatever h5py makes of the system's error; nothing is left."""
    run, _ = made

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(minari.dataset.minari_storage.MinariStorage, "update_metadata", fail)
    with pytest.raises(PenstockError, match=r"out': .*No space left on device"):
        export_run(run, tmp_path / "out", OBSERVATION, ACTION)
    assert not (tmp_path / "out").exists()


def test_of_two_imports_of_one_name_one_is_refused(made, tmp_path):
    run, _ = made
    export_run(run, tmp_path / "dataset", OBSERVATION, ACTION)
    new = RunFolder(open_store(tmp_path / "runs"), "new")
    with acquire(new.store, "another import", 30.0), pytest.raises(LeaseHeldError, match="another import"):
        import_dataset(new, tmp_path / "dataset")
    assert import_dataset(new, tmp_path / "dataset").episodes > 0


def test_impossible_conversions_are_reported(made, tmp_path):
    """A path that is taken, a folder that is no dataset, spaces that are no arrays, a damaged shard."""
    run, _ = made
    export_run(run, tmp_path / "taken", OBSERVATION, ACTION)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("not of a dataset")
    for path in (tmp_path / "taken", tmp_path / "mine"):
        with pytest.raises(ConfigError, match="is a folder with files; an export needs a new path, or an empty folder"):
            export_run(run, path, OBSERVATION, ACTION)
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert export_run(run, tmp_path / "empty", OBSERVATION, ACTION).episodes > 0
    (tmp_path / "policy.onnx").write_bytes(b"a policy")
    with pytest.raises(ConfigError, match=r"policy\.onnx' can't be a dataset's folder: .*choose a new path"):
        export_run(run, tmp_path / "policy.onnx", OBSERVATION, ACTION)
    with pytest.raises(ConfigError, match="not a Minari dataset"):
        import_dataset(RunFolder(run.store, "x"), tmp_path / "none")
    ref = next(iter(run.log.shard_refs()))
    content = bytearray(run.store.read(ref.name))
    content[len(content) // 2] ^= 1
    run.store.write(ref.name, [content])
    with pytest.raises(CorruptObjectError, match=ref.name):
        export_run(run, tmp_path / "damaged", OBSERVATION, ACTION)
    assert not (tmp_path / "damaged").exists(), "no part of a dataset is left"


def test_a_run_knows_its_environments_spaces(tmp_path):
    """With their bounds, as Gymnasium has them."""
    run = RunFolder(open_store(tmp_path), "cartpole")
    config = {"name": "cartpole", "environment": {"id": "CartPole-v1", "num_envs": 8, "envs_per_tile": 8}}
    run.create({"format": "penstock-run/1", "config": config})
    environment = gymnasium.make("CartPole-v1")
    assert spaces_of(run) == (environment.observation_space, environment.action_space)


def test_minari_makes_the_environment_that_acted(tmp_path):
    """An id that Gymnasium has, with the run's limit; none where settings or an encoding make it another one."""
    cartpole = gymnasium.make("CartPole-v1")
    own = cartpole.observation_space, cartpole.action_space
    for name, changed, shown, is_named in (
        ("plain", {}, own, True),
        ("heavier", {"settings": {"gravity": 30.0}}, own, False),
        ("encoded", {}, (OBSERVATION, ACTION), False),
        ("unknown", {"id": "Elsewhere-v0"}, own, False),
    ):
        run = RunFolder(open_store(tmp_path / "runs"), name)
        environment = {"id": "CartPole-v1", "max_episode_steps": 77, **changed}
        run.create({"format": "penstock-run/1", "identity": {}, "config": {"environment": environment}})
        stored = _registered(run, *shown).get("env_spec")
        assert (stored is not None) == is_named
        if stored is not None:
            recovered = gymnasium.make(EnvSpec.from_json(stored))
            assert (recovered.spec.id, recovered.spec.max_episode_steps) == ("CartPole-v1", 77)


def test_the_command_exports_and_imports(made, tmp_path, monkeypatch):
    """From and to relative paths, as people type them. And says how many episodes had no end."""
    run, _ = made
    monkeypatch.chdir(tmp_path)
    first = export_run(run, tmp_path / "first", OBSERVATION, ACTION)
    store = ["--store", str(tmp_path / "runs"), "--json"]
    result = CliRunner().invoke(app, ["import", "first", "--name", "again", *store])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["export", "again", "second", "--to", "minari", *store])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == asdict(first)
    same_episodes(episodes_of(tmp_path / "first"), episodes_of(tmp_path / "second"))
    for words in (["resume", "again"], ["extend", "again", "--max-stages", "9"]):
        refused = CliRunner().invoke(app, [*words, *store[:2]])
        assert isinstance(refused.exception, ConfigError)
        assert "'again' was imported from a dataset" in str(refused.exception)
    for words in (["evaluate", "again"], ["export", "again", "policy.onnx"]):
        refused = CliRunner().invoke(app, [*words, *store[:2]])
        assert isinstance(refused.exception, ConfigError)
        assert "so there is no policy; read them with `penstock.TrajectoryDataset`" in str(refused.exception)
    shown = CliRunner().invoke(app, ["show", "again", *store])
    assert json.loads(shown.stdout)["next"][0].startswith("penstock export again FOLDER --to minari")
    with pytest.raises(ConfigError, match="'csv'"):
        CliRunner().invoke(app, ["export", "again", str(tmp_path / "x"), "--to", "csv", *store], catch_exceptions=False)
