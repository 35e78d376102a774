"""Settings of several algorithms: as options of the command line, in the list of settings, and in Prefect's form."""

from pathlib import Path

import pytest
from prefect.utilities.schema_tools.validation import validate
from pydantic_core import to_jsonable_python

import tasks
from flows.overrides import describe_settings, parse_overrides
from flows.setting_list import flat_settings, settings_of, told_setting
from flows.setting_reference import reference
from flows.train import train
from storage.errors import ConfigError
from tasks.algorithm_settings.own import OWN
from tasks.config import RunConfig, TrainConfig, build_config, choices_of
from tasks.replay_config import ReplayConfig


def test_a_setting_of_any_algorithm_is_an_option():
    """By its last part too; what several algorithms have is not ambiguous."""
    assert parse_overrides(["--learning-rate", "0.1"]) == {"algorithm": {"learning_rate": 0.1}}
    assert parse_overrides(["--rho-limit=2.0", "--algorithm.name", "impala"]) == {
        "algorithm": {"rho_limit": 2.0, "name": "impala"}
    }
    with pytest.raises(ConfigError, match=r"--rho-limits: no such setting; did you mean --rho_limit"):
        parse_overrides(["--rho-limits", "2"])


def test_the_reference_is_up_to_date():
    """docs/settings.md is what the typed configuration gives; `penstock settings --markdown` writes it anew."""
    assert (Path(tasks.__path__[0]).parent / "docs/settings.md").read_text() == reference()


@pytest.mark.parametrize("kind", [TrainConfig, ReplayConfig])
def test_defaults_are_those_of_a_run_that_was_given_nothing(kind: type[RunConfig]):
    """Also where a kind of run has others than its tables of settings; so what is marked as changed was changed."""
    given = {"source": {"runs": ["some-run"]}} if kind is ReplayConfig else {}
    values = flat_settings(kind.model_validate(given).model_dump(mode="json"))
    defaults = {one.path: one.default for one in settings_of(kind) if one.algorithm in {"", values["algorithm.name"]}}
    assert {path: value for path, value in values.items() if value != defaults[path]} == (
        {"source.runs": ["some-run"]} if given else {}
    )


def test_the_list_says_whose_setting_it_is():
    """Each algorithm's fields with their own defaults, in the order of the form."""
    found = [row for row in describe_settings() if row["setting"].startswith("algorithm.")]
    expected = [
        (f"algorithm.{name}", told_setting(to_jsonable_python(field.default)), f"{chosen}: {field.description}")
        for chosen, model in choices_of(TrainConfig.model_fields["algorithm"].annotation).items()
        if chosen != OWN
        for name, field in model.model_fields.items()
    ]
    assert [(row["setting"], row["default"], row["meaning"]) for row in found[:-1]] == expected
    assert {chosen.split(":")[0] for *_, chosen in expected} >= {"ppo", "impala", "dqn"}
    assert (found[-1]["setting"], found[-1]["default"]) == ("algorithm.name", "")
    assert found[-1]["meaning"].startswith("own: An algorithm of your own")


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
    """Its check of parameters and ours agree, settings without a name included: those are PPO's."""
    schema = train.parameters.model_dump()
    errors = validate({"config": {"algorithm": algorithm}}, schema)
    assert (not errors) == fits, errors
    try:
        build_config({"algorithm": algorithm})
    except ConfigError:
        assert not fits
    else:
        assert fits


def test_how_columns_are_stored_is_an_option_and_in_the_form():
    """A table's entries one by one, or as a TOML table; Prefect's form takes the same, and refuses another codec."""
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
