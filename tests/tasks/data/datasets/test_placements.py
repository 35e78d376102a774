"""Recorded placements: episodes that the environment confirms, in shards that verify, to the same bytes every time."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from penstock import native
from penstock.flows.cli.main import app
from penstock.native.floorplan import (
    GUIDED,
    BlockSpec,
    anneal,
    create_placement_cost,
    generate_block,
    load_environment,
)
from penstock.storage.errors import ConfigError, RunExistsError
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.verification import verify_run
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.best_placements import best_placements, placed_again
from penstock.tasks.data.replay.plan import make_plan
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.floorplan_blocks import open_blocks
from penstock.tasks.model.algorithms.registry import make_algorithm
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.replay import build_replay_config, build_stored_config
from penstock.tasks.setup.planning.extending import extend_run
from penstock.tasks.specs import EnvironmentSpec, Trajectory

if TYPE_CHECKING:
    from pathlib import Path

MACROS = (4, 6)
KINDS = ("annealed.plc", "initial.plc")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    """Two blocks on one grid, of 4 and 6 macros, with an annealed placement each."""
    made = []
    for seed, macros in enumerate(MACROS):
        folder = tmp_path_factory.mktemp(f"block-{seed}")
        spec = BlockSpec(macros, 8, 6, columns=10, rows=9, hard_share=0.2, seed=seed)
        plc = create_placement_cost(*generate_block(folder, spec))
        anneal(plc, moves=2_000, proposals=GUIDED, seed=1)
        plc.save_placement(folder / "annealed.plc")
        made.append(folder)
    return made


def record(store: Path, folders: list[Path], name: str = "demos", kinds: tuple[str, ...] = KINDS) -> Any:
    options = [option for kind in kinds for option in ("--placement", kind)]
    command = ["floorplan", "record", name, *map(str, folders), *options, "--store", str(store), "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def content(store: Path, name: str = "demos") -> dict[str, bytes]:
    """All objects but `run.json`, which has the time, and the lease."""
    names = ("run.json", "lease.json")
    files = (path for path in (store / name).rglob("*") if path.is_file() and path.name not in names)
    return {str(path.relative_to(store)): path.read_bytes() for path in files}


def test_the_episodes_are_the_placements(tmp_path, folders):
    """Each is whole, has the environment's reward, and its last rows give the annealed positions back."""
    found = record(tmp_path, folders)
    assert [(one["block"], one["macros"], one["moved"]) for one in found] == [
        (0, 4, 0),
        (0, 4, 0),
        (1, 6, 0),
        (1, 6, 0),
    ]
    run = RunFolder(open_store(tmp_path), "demos")
    for best in best_placements(run):
        returns = [one["episode_return"] for one in found if one["block"] == best.block]
        assert best.episode_return == max(returns)
        plc = placed_again(run, best)  # refuses costs that are not the return
        kind = KINDS[returns.index(max(returns))]
        placed = create_placement_cost(folders[best.block] / "netlist.pb.txt", folders[best.block] / kind)
        for macro in plc.get_macro_indices():
            if not plc.is_node_soft_macro(macro):
                assert plc.get_node_location(macro) == pytest.approx(placed.get_node_location(macro), abs=1e-3)


def test_the_run_is_one_as_any_other(tmp_path, folders):
    """It verifies, has one shard a block, and a replay of it is planned; it has nothing that could be extended."""
    record(tmp_path, folders)
    run = RunFolder(open_store(tmp_path), "demos")
    assert verify_run(run).faults == ()
    refs = list(run.log.shard_refs())
    assert [ref.rows for ref in refs] == [2 * macros for macros in MACROS]
    plan, _ = make_plan(open_store(tmp_path), build_replay_config({"source": {"runs": ["demos"]}}))
    assert len(plan) == len(refs)
    least = max(float(open_.return_.max()) for open_ in (shard_of(run, ref).info.episodes for ref in refs))
    chosen, _ = make_plan(
        open_store(tmp_path), build_replay_config({"source": {"runs": ["demos"], "min_return": least}})
    )
    assert [chosen[i].row_count for i in range(len(chosen))] in ([4], [6])
    with pytest.raises(ConfigError, match=r"has learned nothing, .*learn from them with `penstock replay NAME"):
        extend_run(run, lambda limits: limits._replace(max_stages=99))


def shard_of(run: RunFolder, ref: Any) -> Any:
    return decode_shard(run.store.view(ref.name), None, ref.name, ref.digest)


def test_recording_again_gives_the_same_bytes(tmp_path, folders):
    """In another store; and after it was stopped between the run's creation and its commit, in the same one."""
    record(tmp_path / "one", folders)
    record(tmp_path / "two", folders)
    expected = content(tmp_path / "one")
    assert content(tmp_path / "two") == expected
    for name in ("commits/00000000.json", "latest.json"):
        (tmp_path / "two/demos" / name).unlink(missing_ok=True)
    record(tmp_path / "two", folders)
    assert content(tmp_path / "two") == expected
    with pytest.raises(RunExistsError, match="'demos'"):
        record(tmp_path / "two", folders)


def test_what_can_not_be_recorded_is_refused(tmp_path, folders):
    """A folder without a netlist, a missing placement, and a replay of runs with other blocks."""
    with pytest.raises(ConfigError, match="found no netlist"):
        record(tmp_path, [tmp_path])
    with pytest.raises(ConfigError, match=r"absent\.plc"):
        record(tmp_path, folders, kinds=("annealed.plc", "absent.plc"))
    record(tmp_path, folders[:1], "one")
    record(tmp_path, folders[1:], "other")
    with pytest.raises(ConfigError, match=r"'other' has environment .*one replay learns from one environment"):
        make_plan(open_store(tmp_path), build_replay_config({"source": {"runs": ["one", "other"]}}))


def test_acting_sees_what_was_recorded(tmp_path, folders):
    """A pool of one block gives, for stored actions, the observations and reward that were stored of it among others.

    They differ in the block's number, and in the places of the macros that only a larger block has.
    """
    record(tmp_path, folders, kinds=KINDS[:1])
    run = RunFolder(open_store(tmp_path), "demos")
    config = build_stored_config(run.load("config")["config"])
    for number, (block, ref) in enumerate(zip(open_blocks(config.environment), run.log.shard_refs(), strict=True)):
        stored = shard_of(run, ref).columns
        with closing(native.make(load_environment(block).environment_ids[0], 1)) as pool:
            cells = int(pool.environment["facts"]["grid"].prod())
            seen, _ = pool.reset(seed=1)
            actions = stored["action"].flatten()
            for row, action in zip(stored["observation"].reshape(len(actions), -1), actions, strict=True):
                assert row[cells] == number
                expected = row[: seen.shape[1]].copy()
                expected[cells] = 0
                assert seen[0].tolist() == expected.tolist()
                seen, reward, terminated, *_ = pool.step(np.array([action]))
        assert terminated[0]
        assert float(reward[0]) == pytest.approx(float(stored["reward"].sum()), abs=1e-6)


def test_a_clone_repeats_the_placements(tmp_path, folders):
    """Cloned to the end, the policy's likeliest cells are those of the recorded placements, block by block."""
    record(tmp_path, folders, kinds=KINDS[:1])
    algorithm, config, rows = cloning(tmp_path, "behaviour_cloning")
    state = algorithm.init(0)
    (loss,) = algorithm.losses
    for _ in range(400):
        gradient, outputs = minibatch_gradient(loss, state, rows, {}, 4096)
        if outputs["agreement"].all():
            break
        state = algorithm.update(state, loss, gradient)
    acted: list[list[int]] = [[] for _ in MACROS]
    with closing(make_pool(config, len(MACROS))) as pool:
        observation, _ = pool.reset(seed=0)
        while left := [block for block, macros in enumerate(MACROS) if len(acted[block]) < macros]:
            seen, noise = torch.from_numpy(observation[left]), torch.zeros(len(left), *algorithm.noise.shape)
            chosen = observation[:, : 10 * 9].argmax(1)  # allowed, as what comes after an episode must be too
            chosen[left] = algorithm.act(state.params, None, seen, noise)[0]["action"].numpy()
            for block in left:
                acted[block].append(int(chosen[block]))
            observation, *_ = pool.step(chosen)
    assert [cell for cells in acted for cell in cells] == rows["action"].tolist()


@pytest.mark.parametrize("name", ["behaviour_cloning", "iql"])
def test_learning_makes_the_stored_actions_likelier(tmp_path, folders, name):
    """Over blocks of different sizes; critics of IQL begin without the rule, whose numbers are no values."""
    record(tmp_path, folders, kinds=KINDS[:1])
    algorithm, _, rows = cloning(tmp_path, name)
    state = algorithm.init(0)
    if name == "iql":
        assert not any(tensor.any() for key, tensor in state.params["critic"].items() if key.endswith("rule.weight"))
        assert state.params["policy"]["rule.weight"].any()
    measured = []
    for _ in range(40):
        for loss in algorithm.losses:
            gradient, outputs = minibatch_gradient(loss, state, rows, {}, 4096)
            if loss.name == "policy":
                measured.append(float(outputs["negative_log_likelihood"].mean()))
            state = algorithm.update(state, loss, gradient)
    assert measured[-1] < 0.5 * measured[0]


def cloning(store: Path, name: str) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """Return an algorithm that learns from the run `demos`, its configuration and all rows."""
    run = RunFolder(open_store(store), "demos")
    stored = build_stored_config(run.load("config")["config"])
    settings = {"name": name, "network": "floorplan", "features": 4, "hidden": (8,), "learning_rate": 0.02}
    config = build_replay_config({"source": {"runs": ["demos"]}, "algorithm": settings}).model_copy(
        update={"environment": stored.environment}
    )
    with closing(make_pool(config, 1)) as pool:
        environment = EnvironmentSpec.from_pool("Floorplan-v0", dict(pool.environment), 2)
    algorithm = make_algorithm(config.algorithm, environment)
    params, batches = algorithm.init(0).params, []
    for ref in run.log.shard_refs():
        shard = shard_of(run, ref)
        columns = {key: torch.from_numpy(array.copy()) for key, array in shard.columns.items()}
        after = torch.from_numpy(shard.bootstrap_observation.copy())
        trajectory = Trajectory(columns, torch.from_numpy(shard.bootstrap_rows.copy()), after)
        batches.append(algorithm.post(params, trajectory))
    return algorithm, config, {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
