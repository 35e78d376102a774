"""Settings of several algorithms: as options of the command line, in the list of settings, and in Prefect's form."""

import pytest
from prefect.utilities.schema_tools.validation import validate

from flows.overrides import describe_settings, parse_overrides
from flows.train import train
from storage.errors import ConfigError
from tasks.algorithm_settings.own import OWN
from tasks.config import TrainConfig, build_config, choices_of


def test_a_setting_of_any_algorithm_is_an_option():
    """By its last part too; what several algorithms have is not ambiguous."""
    assert parse_overrides(["--learning-rate", "0.1"]) == {"algorithm": {"learning_rate": 0.1}}
    assert parse_overrides(["--rho-limit=2.0", "--algorithm.name", "impala"]) == {
        "algorithm": {"rho_limit": 2.0, "name": "impala"}
    }
    with pytest.raises(ConfigError, match=r"--rho-limits: no such setting; did you mean --rho_limit"):
        parse_overrides(["--rho-limits", "2"])


def test_the_list_says_whose_setting_it_is():
    """Each algorithm's fields with their own defaults, in the order of the form."""
    found = [row for row in describe_settings() if row["setting"].startswith("algorithm.")]
    expected = [
        (f"algorithm.{name}", "" if field.default is None else field.default, f"{chosen}: {field.description}")
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
