"""Settings of several algorithms: as options of the command line, in the list of settings, and in Prefect's form."""

import json
import re
from pathlib import Path

import pytest
from prefect.utilities.schema_tools.validation import validate
from pydantic_core import to_jsonable_python

from penstock import tasks
from penstock.flows.settings.listing import flat_settings, format_setting, reference, settings_of
from penstock.flows.settings.options import (
    configured,
    describe_settings,
    nested_settings,
    notes_on_preset,
    parse_overrides,
    resolve_setting,
)
from penstock.flows.settings.other_names import OTHER_NAMES
from penstock.flows.train import train
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.custom_algorithm import CUSTOM
from penstock.tasks.setup.config.loading import build_config, choices_of
from penstock.tasks.setup.config.replay import ReplayConfig
from penstock.tasks.setup.config.run import RunConfig, TrainConfig


def test_a_setting_of_any_algorithm_is_an_option():
    """The last part suffices; a setting that several algorithms share is not ambiguous."""
    assert parse_overrides(["--learning-rate", "0.1"]) == {"algorithm": {"learning_rate": 0.1}}
    assert parse_overrides(["--rho-limit=2.0", "--algorithm.name", "impala"]) == {
        "algorithm": {"rho_limit": 2.0, "name": "impala"}
    }
    with pytest.raises(ConfigError, match=r"--rho-limits: no such setting; did you mean --rho_limit"):
        parse_overrides(["--rho-limits", "2"])
    with pytest.raises(ConfigError, match=r"--nme: no such setting; did you mean --name\? `penstock settings`"):
        parse_overrides(["--nme", "x"])
    with pytest.raises(ConfigError, match=r"--zzz: no such setting; `penstock settings` lists them all"):
        parse_overrides(["--zzz", "x"])


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_libraries_names_are_answered_with_ours(name: str):
    """Each stands for settings that exist, and is none of ours itself; a search for it finds them."""
    ours = OTHER_NAMES[name].split()
    with pytest.raises(ConfigError, match=rf"no such setting; did you mean --{re.escape(' or --'.join(ours))}\?"):
        resolve_setting(name)
    assert {row["setting"] for row in describe_settings(search=name)} >= set(ours)


@pytest.mark.parametrize(
    ("preset", "arguments", "target"),
    [
        ("pendulum", ["--environment.id", "CartPole-v1"], "-200, the target of the preset 'pendulum' for Pendulum-v1"),
        ("--environment.id", ["Pendulum-v1"], "475, the target of the preset 'cartpole' for CartPole-v1"),
        ("cartpole", ["--environment.id", "gymnasium/CartPole-v1"], ""),
        ("cartpole", ["--environment.id", "Pendulum-v1", "--target-return", "475"], ""),
        ("cartpole", ["--environment.id", "Pendulum-v1", "--target-return=none"], ""),
        ("halfcheetah", ["--environment.id", "Hopper-v5"], ""),
        ("cartpole", [], ""),
    ],
)
def test_a_target_of_another_environment_is_noted(preset: str, arguments: list[str], target: str):
    """By it a run ends after its first stage, or never; a preset without one, or a target of one's own, is fine."""
    said = notes_on_preset(preset, arguments, configured(preset, arguments, {}))
    assert [note.partition("; ")[0] for note in said] == [f"note: the run ends at a mean return of {target}"] * bool(
        target
    )


def test_a_target_that_is_text_is_noted_as_the_number_it_is(tmp_path: Path):
    """Settings accept both, and a note must not stop the run."""
    (preset := tmp_path / "mine.toml").write_text('environment.id = "CartPole-v1"\nschedule.target_return = "475"\n')
    arguments = ["--environment.id", "Acrobot-v1"]
    (said,) = notes_on_preset(str(preset), arguments, configured(str(preset), arguments, {}))
    assert said.startswith("note: the run ends at a mean return of 475, ")


def test_a_preset_of_the_chosen_algorithm_is_noted():
    """The schedule and the rest of a PPO preset hardly fit another algorithm."""
    arguments = ["--algorithm.name", "dqn"]
    expected = ["note: the preset 'cartpole-dqn' has settings for dqn: penstock train cartpole-dqn"]
    assert notes_on_preset("cartpole", arguments, configured("cartpole", arguments, {})) == expected
    assert notes_on_preset("cartpole-dqn", [], configured("cartpole-dqn", [], {})) == []


def test_a_module_in_place_of_a_preset_is_answered_with_the_setting(tmp_path: Path):
    """A user of other libraries gives the file that has the environment."""
    (module := tmp_path / "grid.py").write_text("import gymnasium\n")
    with pytest.raises(
        ConfigError, match=r"grid\.py' is not valid TOML: .*environment\.id, such as my_module:MyEnv-v0$"
    ):
        configured(str(module), [], {})


def test_wrappers_are_given_as_toml_as_json_or_alone():
    """A shell's user knows JSON; text that is neither stays text."""
    named, settings = "gymnasium.wrappers.FrameStackObservation", {"stack_size": 4}
    expected = {"environment": {"wrappers": [{"name": named, "settings": settings}]}}
    assert parse_overrides(["--wrappers", f'[{{name = "{named}", settings = {{stack_size = 4}}}}]']) == expected
    assert parse_overrides(["--wrappers", json.dumps(expected["environment"]["wrappers"])]) == expected
    alone = build_config(parse_overrides(["--wrappers", named]))
    assert alone.environment.wrappers == (named,)
    assert parse_overrides(["--wrappers", "[half"]) == {"environment": {"wrappers": "[half"}}


def test_settings_are_searched_by_name_and_meaning():
    """Dashes stand for underscores, as in options; nothing else is listed."""
    assert [row["setting"] for row in describe_settings(search="lease-seconds")] == ["cluster.lease_seconds"]
    found = describe_settings(search="Dask scheduler")
    assert {"cluster.scheduler", "cluster.schedulers"} <= {row["setting"] for row in found}
    assert all("dask scheduler" in row["meaning"].lower() for row in found)
    assert describe_settings(search="no such words") == []


def test_the_reference_is_up_to_date():
    """docs/settings.md equals the reference of the typed configuration; `penstock settings --markdown` prints it."""
    assert (Path(tasks.__path__[0]).resolve().parent / "docs/settings.md").read_text() == reference()


@pytest.mark.parametrize("kind", [TrainConfig, ReplayConfig])
def test_listed_defaults_equal_those_of_a_run_without_settings(kind: type[RunConfig]):
    """This holds where a kind of run overrides a table's defaults; so settings marked as changed were changed."""
    given = {"source": {"runs": ["some-run"]}} if kind is ReplayConfig else {}
    values = flat_settings(kind.model_validate(given).model_dump(mode="json"))
    defaults = {one.path: one.default for one in settings_of(kind) if one.algorithm in {"", values["algorithm.name"]}}
    assert {path: value for path, value in values.items() if value != defaults[path]} == (
        {"source.runs": ["some-run"]} if given else {}
    )


def test_the_list_names_the_algorithm_of_each_setting():
    """Each algorithm's fields have their own defaults, in the order of the form."""
    found = [row for row in describe_settings() if row["setting"].startswith("algorithm.")]
    expected = [
        (f"algorithm.{name}", format_setting(to_jsonable_python(field.default)), f"{chosen}: {field.description}")
        for chosen, model in choices_of(TrainConfig.model_fields["algorithm"].annotation).items()
        if chosen != CUSTOM
        for name, field in model.model_fields.items()
    ]
    assert [(row["setting"], row["default"], row["meaning"]) for row in found[:-1]] == expected
    assert {chosen.split(":")[0] for *_, chosen in expected} >= {"ppo", "impala", "dqn"}
    assert (found[-1]["setting"], found[-1]["default"]) == ("algorithm.name", "")
    assert found[-1]["meaning"].startswith("custom: A custom algorithm")


@pytest.mark.parametrize(
    ("algorithm", "fits"),
    [
        ({}, True),
        ({"epochs": 3}, True),
        ({"hidden": [8]}, True),
        ({"name": "ppo"}, True),
        ({"name": "impala", "rho_limit": 2.0}, True),
        ({"name": "impala", "clip_range": 0.2}, False),
        ({"name": "reinforce"}, False),
        ({"name": "my.module:Mine", "whatever": 3}, True),
        ({"name": "my.module.Mine"}, False),
    ],
)
def test_prefects_form_takes_what_the_configuration_takes(algorithm: dict[str, object], fits: bool):
    """Prefect's check of parameters agrees with Penstock's, also for settings without a name, which are PPO's."""
    schema = train.parameters.model_dump()
    errors = validate({"config": {"algorithm": algorithm}}, schema)
    assert (not errors) == fits, errors
    try:
        build_config({"algorithm": algorithm})
    except ConfigError:
        assert not fits
    else:
        assert fits


def test_column_storage_is_an_option_and_in_the_form():
    """A table is given entry by entry or as TOML; Prefect's form takes the same, and refuses an unknown codec."""
    one_by_one = parse_overrides(
        ["--shards.compression.observation", "lz4", "--shards.compression.reward=lz4", "--stacked", "observation"]
    )
    assert one_by_one == {
        "shards": {"compression": {"observation": "lz4", "reward": "lz4"}, "stacked": "observation"},
    }
    at_once = parse_overrides(
        ["--compression", '{observation = "lz4", reward = "lz4"}', "--shards.stacked", '["observation"]']
    )
    assert build_config(one_by_one) == build_config(at_once)
    schema = train.parameters.model_dump()
    assert not validate({"config": build_config(at_once).model_dump(mode="json", include={"shards"})}, schema)
    assert validate({"config": {"shards": {"compression": {"observation": "gzip"}}}}, schema)
    with pytest.raises(ConfigError, match=r"--shards.compresion.reward: no such setting"):
        parse_overrides(["--shards.compresion.reward", "lz4"])


def test_a_setting_that_is_given_twice_with_other_values_is_refused():
    """By its table and by its name, in Python; on a command line the last option counts, as usual."""
    assert nested_settings({"schedule": {"lag": 2}, "lag": 2}) == {"schedule": {"lag": 2}}
    with pytest.raises(ConfigError, match=r"schedule.lag = 2: it is given twice, with other values"):
        nested_settings({"schedule": {"lag": 1}, "lag": 2})
    assert parse_overrides(["--lag", "1", "--schedule.lag", "2"]) == {"schedule": {"lag": 2}}
