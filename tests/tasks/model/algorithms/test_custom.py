"""Custom algorithms: found by name, with custom settings, and part of a run's identity."""

import itertools
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.flows.settings.options import parse_overrides
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import _stored_config, describe_run
from penstock.tasks.model.algorithms.contract import Algorithm
from penstock.tasks.model.algorithms.custom import load_class, make_custom, typed_settings
from penstock.tasks.model.algorithms.custom_probe import custom_files, probe_algorithm, with_custom_defaults
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.run_context import load_context
from penstock.tasks.setup.config.algorithm_base import implementation_of
from penstock.tasks.setup.config.custom_algorithm import CustomAlgorithmSettings
from penstock.tasks.setup.config.loading import build_config, choices_of, with_overrides
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.setup.config.replay import ReplayConfig, build_replay_config
from penstock.tasks.setup.config.run import TrainConfig
from penstock.tasks.setup.planning.preflight import check_distribution

from ....support.algorithms.ppo_cases import CHOICES
from ...conftest import MakeContext

MINE = """
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal
from pydantic import BaseModel, Field
from penstock.tasks.model.algorithms.contract import Algorithm, Loss
from penstock.tasks.model.algorithms.ppo import PPO, PPOSettings
from penstock.tasks.specs import EnvironmentSpec, Spec, State

if TYPE_CHECKING:
    from penstock.tasks.setup.config.run import Missing

print("a module may print")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mine(PPO):
    width: Annotated[int, Field(ge=1)] = 3
    rates: tuple[float, ...] = field(default_factory=lambda: (0.5,))
    mode: Literal["fast", "exact"] = "fast"

    @property
    def rows(self):
        return {**PPO.rows.fget(self), "extra": Spec("float32", (self.width,))}
"""
NUMBERS = itertools.count()

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module of a fresh name with lines after `MINE`, or another text, on Python's path; returns that name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(lines: str = "", before: str = MINE) -> str:
        name = f"outside_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(f"{before}\n\n{lines}\n")
        return name

    return write


def refusal(name: str, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_custom(CustomAlgorithmSettings(name=name, **settings), CHOICES)
    return str(caught.value)


def test_settings_are_those_that_the_class_declares(write: Write):
    """Typed as its fields are, from what a TOML file or JSON has; what is left out has the field's default."""
    settings = CustomAlgorithmSettings(name=f"{write()}:Mine", rates=[1, 2], mode="exact", hidden=[4])
    made: Any = make_custom(settings, CHOICES)
    assert (made.rates, made.mode, made.width, made.settings.hidden) == ((1.0, 2.0), "exact", 3, (4,))
    assert made.environment is CHOICES
    stored = typed_settings(type(made), settings)
    assert (stored["rates"], stored["width"], stored["epochs"]) == ([1.0, 2.0], 3, 4)
    assert make_custom(CustomAlgorithmSettings(name=settings.name, **stored), CHOICES) == made


def test_a_pydantic_model_is_one_too(write: Write):
    """With the bounds of its fields."""
    lines = """
class Model(BaseModel):
    environment: EnvironmentSpec
    rate: float = Field(0.5, gt=0)
"""
    for member in ("rows", "noise", "losses", "actor_groups"):
        lines += f"    {member} = property(lambda self: PPO.{member}.fget(PPO(PPOSettings(), self.environment)))\n"
    for member in ("init", "initial_carry", "act", "post", "stats", "plan", "update", "after_minibatch"):
        lines += f"    def {member}(self, *given): return PPO(PPOSettings(), self.environment).{member}(*given)\n"
    name = f"{write(lines)}:Model"
    made = make_custom(CustomAlgorithmSettings(name=name, rate=2), CHOICES)
    assert torch.equal(made.init(3).params["policy"].flat, PPO(PPOSettings(), CHOICES).init(3).params["policy"].flat)
    assert refusal(name, rate=0) == "algorithm.rate = 0: input should be greater than 0"


@pytest.mark.parametrize(
    ("lines", "name", "settings", "expected"),
    [
        ("", "no_such_module:Mine", {}, ["there is no module 'no_such_module'", "PYTHONPATH"]),
        ("", "penstock.no_such:Mine", {}, ["there is no module 'penstock.no_such'"]),
        ("", "{}:Yours", {}, ["there is no Yours in", "its algorithms are: PPO, Mine"]),
        ("Yours = 3", "{}:Yours", {}, ["it is not a class, expected one: Yours"]),
        ("import no_such_helper", "{}:Mine", {}, ["importing {} failed: ModuleNotFoundError", "no_such_helper"]),
        ("1 / 0", "{}:Mine", {}, ["importing {} failed: ZeroDivisionError: division by zero ({}.py, line"]),
        ("def (", "{}:Mine", {}, ["SyntaxError: invalid syntax ({}.py, line"]),
        ("class Bare: act = 1", "{}:Bare", {}, ["the class lacks rows, noise", "post"]),
        (
            "@dataclass\nclass Inherits(Algorithm):\n    environment: int",
            "{}:Inherits",
            {},
            ["the class lacks rows, noise, losses, actor_groups, init, act, post, plan, update", "not an algorithm"],
        ),
        ("", "{}:Mine", {"widht": 3}, ["algorithm.widht: no such setting; there are: name, network", "width"]),
        ("", "{}:Mine", {"width": 0}, ["algorithm.width = 0: input should be greater than or equal to 1"]),
        ("", "{}:Mine", {"discount": float("nan")}, ["algorithm.discount = nan: input should be a finite number"]),
        (
            "@dataclass(frozen=True, kw_only=True)\nclass Bound(PPO):\n    must: int",
            "{}:Bound",
            {},
            ["algorithm.must: is missing, and has no default"],
        ),
        (
            "@dataclass(frozen=True, kw_only=True)\nclass Hidden(PPO):\n    must: 'Missing' = 3",
            "{}:Hidden",
            {},
            ["name 'Missing' is not defined; import it outside TYPE_CHECKING"],
        ),
        (
            "@dataclass(frozen=True, kw_only=True)\nclass Odd(PPO):\n    state: State = None",
            "{}:Odd",
            {},
            ["a field has a type that no setting can have: ", "for <class 'penstock.tasks.specs.ParameterGroup'>"],
        ),
        (
            "class Raises(Mine):\n    def __init__(self, **_): raise RuntimeError('not today')",
            "{}:Raises",
            {},
            ["it can't be made for choices: RuntimeError: not today ({}.py, line"],
        ),
        (
            "class Rowless(Mine):\n    rows = property(lambda self: {{'reward': Spec('float32')}})",
            "{}:Rowless",
            {},
            ["expected a column 'action' among them"],
        ),
        ("class Loose(Mine):\n    losses = ()", "{}:Loose", {}, ["losses is (), expected a tuple of one Loss"]),
        ("class Group(Mine):\n    actor_groups = ('brain',)", "{}:Group", {}, ["no parameter group 'brain'", "policy"]),
        (
            "class Numbered(Mine):\n    losses = (Loss('a', 'policy', print, agents=0),)",
            "{}:Numbered",
            {},
            ["the loss 'a' has agents = 0, expected a tuple of agents' numbers, such as (0,)"],
        ),
        (
            "class Common(Mine):\n    losses = (Loss('a', 'value', print, agents=(0,)), Loss('b', 'value', print))",
            "{}:Common",
            {},
            ["the losses 'a' and 'b' train 'value' and have agents = (0,) and None, expected that a group belongs"],
        ),
        ("class Seedless(Mine):\n    def init(self, seed): pass", "{}:Seedless", {}, ["init returned NoneType"]),
    ],
)
def test_a_faulty_algorithm_is_one_clear_line(
    write: Write, lines: str, name: str, settings: dict[str, Any], expected: list[str]
):
    """The line has the finding, the expectation or the alternatives, and the place."""
    module = write(lines.replace("{{", "{").replace("}}", "}"))
    said = refusal(name.format(module), **settings)
    assert len(said.splitlines()) == 1
    for text in expected:
        assert text.replace("{}", module) in said


APART = """
from dataclasses import dataclass, replace
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.setup.config.on_policy import MAPPOSettings

@dataclass(frozen=True)
class Teams(MAPPO):
    settings: MAPPOSettings

    @property
    def losses(self):
        return tuple(replace(loss, agents=(2,) if loss.agents == (2,) else (0, 1)) for loss in MAPPO.losses.fget(self))

class Following(Teams):
    def after_minibatch(self, state):
        return state
"""


@pytest.mark.slow
def test_learners_can_own_its_agents_if_its_losses_name_them(write: Write):
    """Agents whose loss is one have one learner; what changes in every minibatch has no owner."""
    module = write(before=APART)

    def check(name: str, agents: list[list[int]]) -> None:
        learn = {"fragments": ["buffer", "learn", "sync"], "replicas": "learn_tasks", "agents": agents}
        roles = {"act": {"fragments": ["env", "act", "collect"]}, "learn": learn}
        values = {"environment": {"id": "simple_spread_v3"}, "algorithm": {"name": f"{module}:{name}"}}
        values["algorithm"]["shared_parameters"] = False
        check_distribution(build_config({**values, "distribution": {"policy": "m", "learn_tasks": 2, "roles": roles}}))

    check("Teams", [[2], [1, 0]])
    with pytest.raises(ConfigError, match=r"losses whose agents have several learners: \[\[0, 1\], \[0, 1\]"):
        check("Teams", [[0, 2], [1]])
    with pytest.raises(
        ConfigError, match=r"Following': it has an after_minibatch, which no agent owns.* or another policy"
    ):
        check("Following", [[2], [0, 1]])


def test_it_is_found_in_the_working_directory_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a laptop has it; but nothing there stands for a module of Penstock or of Python."""
    name = f"outside_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(MINE)
    (tmp_path / "tasks.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    assert type(make_custom(CustomAlgorithmSettings(name=f"{name}:Mine"), CHOICES)).__name__ == "Mine"


def test_the_source_is_part_of_a_runs_identity(write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Its digest and all settings are stored, defaults included; a resume with another source says so."""
    name = f"{write()}:Mine"
    config = with_custom_defaults(build_config({"name": "a", "algorithm": {"name": name, "epochs": 2}}))
    assert config.identity()["algorithm"].items() >= {"name": name, "epochs": 2, "width": 3, "rates": [0.5]}.items()
    run = RunFolder(open_store(str(tmp_path / "root")), "a")
    run.create(describe_run(config))
    assert probe_algorithm(config).rows.keys() == {"action", "log_probability", "extra"}
    with caplog.at_level(logging.WARNING):
        assert _stored_config(run, run.load(), build_config({"name": "a"})).algorithm == config.algorithm
        assert not caplog.records
        module = tmp_path / f"{name.partition(':')[0]}.py"
        module.write_text(module.read_text() + "# changed\n")
        _stored_config(run, run.load(), build_config({"name": "a"}))
    before = run.load()["made_with"][name]
    assert f"bytes may differ from now on: {name} {before} -> {probe_algorithm(config).source}" in caplog.text


def test_the_flow_hears_of_it_from_another_process(write: Write):
    """If that ends badly, this is one line too."""
    with pytest.raises(ConfigError, match=r"its process exited with status 3: "):
        probe_algorithm(build_config({"algorithm": {"name": f"{write('import os; os._exit(3)')}:Mine"}}))


INHERITING = """
from dataclasses import dataclass
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.algorithms.sac import SAC

@dataclass(frozen=True, kw_only=True)
class MyPPO(PPO):
    pass

@dataclass(frozen=True, kw_only=True)
class MyDQN(DQN):
    pass

@dataclass(frozen=True, kw_only=True)
class MySAC(SAC):
    pass

@dataclass(frozen=True, kw_only=True)
class Choosing(SAC):
    def act(self, params, carry, observation, noise):
        return super().act(params, carry, observation, noise)
"""


SHIPPED = {
    name: model
    for kind in (TrainConfig, ReplayConfig)
    for name, model in choices_of(kind.model_fields["algorithm"].annotation).items()
    if name != "custom"
}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_algorithm_can_be_inherited_from(write: Write, name: str):
    """A subclass has its settings beside its own: fields of all classes above it have types that can be read."""
    module, _, kind = implementation_of(SHIPPED[name]).partition(":")
    imports = f"from dataclasses import dataclass\nfrom {module} import {kind}"
    mine = f"@dataclass(frozen=True, kw_only=True)\nclass Mine({kind}):\n    width: int = 3"
    mine = f"{write(mine, imports)}:Mine"
    settings = CustomAlgorithmSettings(name=mine, hidden=[5], width=4)
    expected = SHIPPED[name](hidden=(5,)).model_dump(mode="json", exclude={"name"})
    assert typed_settings(load_class(mine), settings) == {**expected, "width": 4}


@pytest.mark.slow
def test_a_subclass_keeps_the_limits_of_the_settings_that_it_inherits(write: Write):
    """As those of the algorithm itself: it would fail in the first step, or never learn."""
    module = write(before=INHERITING)
    small = {"environment": {"num_envs": 4, "envs_per_tile": 4}, "schedule": {"round_steps": 16}}

    def probe(name: str, **settings: Any) -> None:
        probe_algorithm(build_config({**small, "algorithm": {"name": f"{module}:{name}", **settings}}))

    probe("MyPPO", minibatches=64)
    probe("Choosing")  # its own acting may take any action
    for name, settings, said in (
        ("MyPPO", {"minibatches": 65}, "ppo, from which it inherits: algorithm.minibatches = 65, but a round has only"),
        ("MyPPO", {"network": "recurrent", "sequence_steps": 5}, "schedule.round_steps = 16 is not a multiple"),
        ("MyPPO", {"network": "leaves", "cells": {"map": [3]}}, "CartPole-v1 has no leaf 'map'"),
        ("MyDQN", {"window_rows": 64, "warm_up_rows": 65}, "the window never has more than 64 rows"),
        ("MySAC", {}, "sac, from which it inherits: algorithm.name = 'sac': it needs vectors as actions"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            probe(name, **settings)


def test_state_that_checkpoints_can_not_hold_is_refused(write: Write):
    """It would be lost, or not be read, where the next stage begins."""
    lines = """
@dataclass(frozen=True, kw_only=True)
class Shared(PPO):
    def init(self, seed):
        state = PPO.init(self, seed)
        state.optimizer["momentum"] = dict(state.optimizer["policy"])
        return state

@dataclass(frozen=True, kw_only=True)
class Divided(PPO):
    def init(self, seed):
        state = PPO.init(self, seed)
        state.params["policy/deep"] = state.params["policy"]
        return state
"""
    module = write(lines)
    assert "optimizer state for 'momentum', expected one of the parameter groups" in refusal(f"{module}:Shared")
    assert "a parameter group 'policy/deep', expected a name without '/'" in refusal(f"{module}:Divided")


def test_the_contracts_defaults_are_inherited():
    """Members that most algorithms do not need have defaults: no memory, no statistics, no targets."""
    kind = type("Short", (Algorithm,), {})
    short: Any = kind()
    assert (short.initial_carry(4), short.stats({}), short.after_minibatch("state")) == (None, {}, "state")


def test_options_of_an_algorithm_of_ones_own():
    """Any of its settings, by the full name; which there are is not known before it is imported."""
    name = ["--algorithm.name", "a.b:C"]
    expected = {"algorithm": {"name": "a.b:C", "my_rate": 0.1}, "schedule": {"lag": 1}}
    assert parse_overrides([*name, "--algorithm.my-rate", "0.1", "--lag", "1"]) == expected
    assert parse_overrides(["--algorithm.my_rate=0.1", "--algorithm.name=a.b:C", "--lag=1"]) == expected
    assert parse_overrides(["--algorithm.my_rate=0.1"], algorithm="a.b:C") == {"algorithm": {"my_rate": 0.1}}
    with pytest.raises(ConfigError, match=r"--my-rate: no such setting"):
        parse_overrides([*name, "--my-rate", "0.1"])
    with pytest.raises(ConfigError, match=r"--algorithm.my-rate: no such setting"):
        parse_overrides(["--algorithm.my_rate=0.1", "--algorithm.name=ppo"], algorithm="a.b:C")


def test_settings_of_another_algorithm_are_left_behind():
    """Those of a preset are for the algorithm that it names; another algorithm does not get them."""
    preset = {"seed": 3, "algorithm": {"epochs": 9}}
    assert with_overrides(preset, {"algorithm": {"name": "a:B"}}) == {"seed": 3, "algorithm": {"name": "a:B"}}
    assert with_overrides(preset, {"algorithm": {"name": "ppo"}})["algorithm"] == {"name": "ppo", "epochs": 9}
    assert with_overrides(preset, {"lag": 1}) == {**preset, "lag": 1}


def test_a_replay_takes_one_too(write: Write):
    """Learning from stored shards is no matter of its name."""
    config = build_replay_config({"source": {"runs": ["a"]}, "algorithm": {"name": f"{write()}:Mine", "width": 5}})
    assert isinstance(config.algorithm, CustomAlgorithmSettings)
    made: Any = make_custom(config.algorithm, CHOICES)
    assert made.width == 5
    assert torch.equal(made.init(3).params["policy"].flat, made.init(3).params["policy"].flat)


@pytest.mark.slow
def test_a_worker_with_another_source_refuses(write: Write, tmp_path: Path, make_context: MakeContext):
    """It has imported an older version than the driver's, though the newer file is there by now.

    It names the file and what to do. A file of another folder has the same name in both; files that only one process
    has imported besides are no difference.
    """
    module = write()
    context = make_context({"algorithm": {"name": f"{module}:Mine"}})
    assignment = Assignment(
        store=context.run.root.url,
        run=context.run.name,
        stage=0,
        attempt=0,
        gang="",
        generation=1,
        role="act",
        replica=0,
        replicas=1,
        task_run="",
        cache_folder=str(tmp_path / "cache"),
        device="cpu",
    )
    agreed = replace(assignment, custom_files=custom_files(context.config))
    assert list(agreed.custom_files) == [f"{module}.py"]
    assert load_context(Assignment.from_json(agreed.to_json())).run.name == "small"
    file = tmp_path / f"{module}.py"
    file.write_text(file.read_text() + "# changed\n")
    changed = replace(assignment, custom_files=custom_files(context.config))
    with pytest.raises(
        ConfigError, match=rf"has another version of {module}\.py in {tmp_path} than .*restart its worker"
    ):
        load_context(changed)
    with pytest.raises(ConfigError, match=r"absent\.py in "):
        load_context(replace(agreed, custom_files={**agreed.custom_files, "absent.py": "0"}))
