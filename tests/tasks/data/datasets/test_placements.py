"""Recorded placements: episodes that the environment confirms, in shards that verify, to the same bytes every time."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from typer.testing import CliRunner

from penstock.flows.cli.main import app
from penstock.native.floorplan import GUIDED, BlockSpec, anneal, create_placement_cost, generate_block
from penstock.storage.errors import ConfigError, RunExistsError
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.verification import verify_run
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.best_placements import best_placements, placed_again
from penstock.tasks.data.replay.plan import make_plan
from penstock.tasks.environments.factory import make_pool
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
    """All objects but `run.json`, which has the time."""
    files = (path for path in (store / name).rglob("*") if path.is_file() and path.name != "run.json")
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
    with pytest.raises(ConfigError, match="has learned nothing, so there is nothing to continue"):
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


@pytest.mark.parametrize("name", ["behaviour_cloning", "iql"])
def test_learning_makes_the_stored_actions_likelier(tmp_path, folders, name):
    """Over blocks of different sizes; critics of IQL begin without the rule, whose numbers are no values."""
    record(tmp_path, folders, kinds=KINDS[:1])
    run = RunFolder(open_store(tmp_path), "demos")
    stored = build_stored_config(run.load("config")["config"])
    settings = {"name": name, "network": "floorplan", "features": 4, "hidden": (8,), "learning_rate": 0.02}
    config = build_replay_config({"source": {"runs": ["demos"]}, "algorithm": settings}).model_copy(
        update={"environment": stored.environment}
    )
    with closing(make_pool(config, 1)) as pool:
        environment = EnvironmentSpec.from_pool("Floorplan-v0", dict(pool.environment), 2)
    algorithm = make_algorithm(config.algorithm, environment)
    state = algorithm.init(0)
    if name == "iql":
        assert not any(tensor.any() for key, tensor in state.params["critic"].items() if key.endswith("rule.weight"))
        assert state.params["policy"]["rule.weight"].any()
    batches = []
    for ref in run.log.shard_refs():
        shard = shard_of(run, ref)
        columns = {key: torch.from_numpy(array.copy()) for key, array in shard.columns.items()}
        after = torch.from_numpy(shard.bootstrap_observation.copy())
        trajectory = Trajectory(columns, torch.from_numpy(shard.bootstrap_rows.copy()), after)
        batches.append(algorithm.post(state.params, trajectory))
    rows = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
    measured = []
    for _ in range(40):
        for loss in algorithm.losses:
            gradient, outputs = minibatch_gradient(loss, state, rows, {}, 4096)
            if loss.name == "policy":
                measured.append(float(outputs["negative_log_likelihood"].mean()))
            state = algorithm.update(state, loss, gradient)
    assert measured[-1] < 0.5 * measured[0]
