"""A new run starts with the parameters of a stored run, or is refused with every mismatch named."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.errors import ConfigError, CorruptObjectError, RunNotFoundError
from penstock.storage.refs import initial_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.verification import verify_run
from penstock.tasks.data.snapshots.checkpoints import write_checkpoint
from penstock.tasks.data.snapshots.initial import start_from
from penstock.tasks.setup.config.loading import build_config, merge
from penstock.tasks.setup.planning import initial_parameters
from penstock.tasks.setup.planning.initial_parameters import keep_initial, read_initial

from ...conftest import SMALL, MakeContext
from ...inference.support import publish

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State

SAC = {"environment": {"id": "Pendulum-v1"}, "algorithm": {"name": "sac", "hidden": [8], "normalize_observation": True}}
DQN = {"algorithm": {"name": "dqn", "hidden": [8]}}


@pytest.fixture
def asked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the fresh parameters here: another process imports torch first, for two CPU seconds."""

    def ask(module: str, question: str, name: str) -> dict[str, Any]:
        return initial_parameters._answer(json.loads(question))

    monkeypatch.setattr(initial_parameters, "ask", ask)
    # No test gets another process's answer, nor that of this one.
    monkeypatch.setattr(initial_parameters, "_probe_once", initial_parameters._probe)


def trained(context: RunContext, **targets: Tensor) -> State:
    """Commit one stage with a checkpoint in which every tensor has other values than a fresh state."""
    state = context.algorithm.init(99)
    with torch.no_grad():
        for group in state.params.values():
            group.flat.add_(0.25)
        for value in state.targets.values():
            value.add_(3)
    state.targets |= targets
    commit = Commit(
        stage=0, parent=context.run.genesis(), rounds=(0, 1), version=2, env_steps=1, episodes=0, shards=(), states=(),
        snapshots=(publish(context, 1), publish(context, 2)), checkpoint=write_checkpoint(
            context.run.store, 0, state, {}
        ), metrics={}, evaluation=None, finished=None,
    )  # fmt: skip
    context.run.log.append(commit)
    return state


def begun(
    context: RunContext, settings: dict[str, Any], name: str = "warm", **init_from: Any
) -> tuple[RunFolder, State]:
    """Begin a run next to the context's, and return it with the state that its first stage starts from."""
    small = SMALL if "algorithm" not in settings else {**SMALL, "algorithm": {}}
    values = merge(merge(small, settings), {"store": context.run.root.url, "init_from": {"run": "small", **init_from}})
    run = RunFolder(context.run.root, name)
    config, origin = keep_initial(run, build_config({**values, "name": name}))
    run.create({"config": config.model_dump(mode="json"), "identity": config.identity(), **origin})
    state = context.algorithm.init(config.seed)
    start_from(state, run.store, config.identity()["init_from"]["digest"])
    return run, state


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="ppo"),
        pytest.param(SAC, id="sac", marks=pytest.mark.slow),
        pytest.param(DQN, id="dqn", marks=pytest.mark.slow),
    ],
)
def test_all_parameters_are_taken_and_belong_to_the_run(make_context: MakeContext, settings: dict[str, Any]):
    """Parameters, moments and target networks, also when the source is gone; counters and optimizers begin anew."""
    context = make_context(settings)
    source = trained(context)
    shutil.copytree(context.run.root.path("small/x").parent, context.run.root.path("kept/x").parent)
    run, state = begun(context, settings, run="kept")
    shutil.rmtree(context.run.root.path("kept/x").parent)
    for group, params in source.params.items():
        expected = context.algorithm.init(1).params[group] if group == "exploration" else params
        assert torch.equal(state.params[group].flat, expected.flat), group
    for name, value in source.targets.items():
        assert torch.equal(state.targets[name], value) == value.is_floating_point(), name
    start_from(state, run.store, run.initial().digest)
    assert verify_run(run).faults == ()
    origin = run.load()["initialised_from"]
    assert (origin["run"], origin["version"]) == ("kept", 2)
    assert run.load()["config"]["init_from"]["version"] == 2
    name = initial_name(run.initial().digest)
    run.store.write(name, [b"x" + run.store.read(name)[1:]])
    assert [fault.name for fault in verify_run(run).faults] == [name]
    run.store.delete([name])
    assert [fault.name for fault in verify_run(run).faults] == [name]
    with pytest.raises(CorruptObjectError, match="is missing"):
        start_from(state, run.store, run.initial().digest)


@pytest.mark.usefixtures("asked_here")
@pytest.mark.parametrize("dtype", [torch.int64, pytest.param(torch.float32, marks=pytest.mark.slow)])
def test_rounds_are_counted_anew(make_context: MakeContext, dtype: torch.dtype):
    """A schedule belongs to a run, also where an older version has stored its counter as a float."""
    annealed = {"algorithm": {"hidden": [8], "final_entropy_weight": 0.0, "anneal_rounds": 9}}
    context = make_context(annealed)
    source = trained(context, rounds=torch.tensor(7, dtype=dtype))
    _, state = begun(context, annealed)
    assert torch.equal(state.params["policy"].flat, source.params["policy"].flat)
    assert torch.equal(state.targets["rounds"], torch.tensor(0))


@pytest.mark.usefixtures("asked_here")
@pytest.mark.parametrize("name", ["dqn", pytest.param("qr_dqn", marks=pytest.mark.slow)])
def test_exploration_begins_anew_unless_it_is_named(make_context: MakeContext, name: str):
    """Epsilon is that of the run's own minibatches; where it is named, it goes on from the source's count."""
    settings = {"algorithm": {"name": name, "hidden": [8], "epsilon_minibatches": 100}}
    context = make_context(settings)
    trained(context, updates=torch.tensor(50))

    def epsilon(state: State) -> float:
        with torch.no_grad():
            context.algorithm.after_minibatch(state)
        return state.params["exploration"].flat.item()

    source = context.algorithm.init(1)
    own = epsilon(source)
    source.targets["updates"].fill_(50)
    assert epsilon(begun(context, settings)[1]) == own
    named = begun(context, settings, "named", groups=["value", "exploration"])[1]
    assert epsilon(named) == epsilon(source) < own


@pytest.mark.usefixtures("asked_here")
@pytest.mark.parametrize("name", ["sac", pytest.param("td3", marks=pytest.mark.slow)])
def test_random_actions_at_the_start_are_the_runs_own(make_context: MakeContext, name: str):
    """However many steps the source has taken."""
    settings = {**SAC, "algorithm": {**SAC["algorithm"], "name": name, "random_steps": 64}}
    context = make_context(settings)
    source = context.algorithm.init(1)
    source.params["exploration"].flat.zero_()
    trained(context, **{"exploration/steps": torch.tensor(5000.0, dtype=torch.float64)})
    _, state = begun(context, settings)
    assert state.params["exploration"].flat.item() == 1.0
    assert state.targets["exploration/steps"].item() == 0.0


@pytest.mark.usefixtures("asked_here")
def test_named_groups_bring_their_moments_and_targets(make_context: MakeContext):
    """The others are as the seed makes them."""
    context = make_context(SAC)
    source = trained(context)
    _, state = begun(context, SAC, groups=["critic", "observations"])
    fresh = context.algorithm.init(SMALL["seed"])
    for group, params in state.params.items():
        expected = source if group in {"critic", "observations"} else fresh
        assert torch.equal(params.flat, expected.params[group].flat), group
    assert all(torch.equal(value, source.targets[name]) for name, value in state.targets.items())
    _, state = begun(context, SAC, "warmer", groups=["actor"])
    assert all(torch.equal(value, fresh.targets[name]) for name, value in state.targets.items())


@pytest.mark.usefixtures("asked_here")
def test_the_identity_is_that_of_the_parameters(make_context: MakeContext):
    """The same parameters give the same run under any name; a run without has the identity of older versions."""
    context = make_context()
    trained(context)
    values = {**SMALL, "store": context.run.root.url}
    address = f"{context.run.root.url}/small"
    found = [
        keep_initial(RunFolder(context.run.root, "new"), build_config({**values, "init_from": {"run": run}}))[0]
        for run in ("small", address)
    ]
    assert found[0].identity() == found[1].identity()
    assert "init_from" not in build_config(values).identity()


@pytest.mark.usefixtures("asked_here")
@pytest.mark.parametrize(
    ("settings", "given", "said"),
    [
        ({}, {"run": "absent"}, ["there is no run 'absent'"]),
        ({}, {"version": 7}, ["no version 7", "up to 2"]),
        ({}, {"version": 1}, ["init_from.version = 1", "choose 2, the last of stage 0"]),
        ({}, {"version": "best"}, ["no evaluation"]),
        ({}, {"digest": "0" * 32}, ["init_from.digest", "expected 0000"]),
        ({}, {"groups": ["policy", "actor"]}, ["groups = 'actor': found policy, value", "the new run has policy"]),
        (
            {"algorithm": {"hidden": [8, 4], "normalize_observation": True}},
            {},
            [
                "policy/1.weight: found float32 [2, 8], expected float32 [4, 8]",
                "policy/2.weight: not found, expected float32 [2, 4]",
                "value/1.bias: found float32 [1], expected float32 [4]",
                "observations/mean: not found, expected float32 [4]",
            ],
        ),
    ],
    ids=["run", "version", "within", "best", "digest", "groups", "shapes and normaliser"],
)
def test_what_does_not_fit_is_named(
    make_context: MakeContext, settings: dict[str, Any], given: dict[str, Any], said: list[str]
):
    """Before anything is written."""
    context = make_context()
    trained(context)
    values = {"store": context.run.root.url, "init_from": {"run": "small", **given}}
    with pytest.raises((ConfigError, RunNotFoundError)) as caught:
        read_initial(build_config(merge(merge(SMALL, settings), values)))
    for text in said:
        assert text in str(caught.value)


def test_settings_without_a_run_are_refused():
    """A version or groups of nothing would silently have no effect."""
    with pytest.raises(ConfigError, match="without a run"):
        build_config({**SMALL, "init_from": {"groups": ["policy"]}})


@pytest.mark.usefixtures("asked_here")
def test_sums_of_rewards_begin_with_the_runs_own_episodes(make_context: MakeContext):
    """The source's belong to its environments, of which there may be another number."""
    settings = {"algorithm": {"hidden": [8], "normalize_reward": True, "reward_normalization": "running"}}
    context = make_context(settings)
    source = trained(context)
    state = begun(context, settings)[1]
    assert torch.equal(state.params["policy"].flat, source.params["policy"].flat)
    assert source.params["reward_sums"].flat.any()
    assert torch.equal(state.params["reward_sums"].flat, context.algorithm.init(1).params["reward_sums"].flat)
