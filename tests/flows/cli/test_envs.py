"""`penstock envs`: what it prints for people and for programs."""

import json

import pytest
from typer.testing import CliRunner

from penstock.flows.cli.main import app
from penstock.native.registry.families import families
from penstock.storage.errors import ConfigError


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["envs", *arguments], terminal_width=80, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_json_is_the_list_and_nothing_else():
    """Every id of every family, whatever is shown to people."""
    assert json.loads(printed("--json")) == [json.loads(json.dumps(family.as_json())) for family in families()]


def test_people_see_the_first_ids_of_a_family_or_all():
    """With how many more there are, what installs the family, and how runs restore it."""
    short, whole = printed(), printed("--all")
    assert "\nMuJoCo: pip install 'penstock-rl[mujoco]'\n  Ant-v5\n" in short
    assert "more: --all" in short
    assert "more: --all" not in whole
    assert "  Walker2d-v5\n" in whole
    assert "restored by replay: a run starts new episodes in each stage" in short


def test_a_pattern_prints_all_that_it_matches():
    """And nothing that it does not; without a match it is an error."""
    assert "  CartPole-v1\n" in printed("cartpole")
    assert "Ant-v5" not in printed("cartpole")
    with pytest.raises(ConfigError, match="no id that can be made here matches 'cartpool'"):
        printed("cartpool")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-key", "key.pem"], "--tls-key is given without --tls-certificate, expected both or neither"),
        (["--tls-certificate", "a.pem"], "--tls-certificate is given without --tls-key"),
        (["--tls-certificate", "nowhere.pem", "--tls-key", "key.pem"], "tls_certificate 'nowhere.pem' with tls_key"),
    ],
)
def test_a_certificate_that_is_none_is_not_served_with(options: list[str], said: str):
    """Nothing is listened on, plain least of all."""
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, ["serve-env", "CartPole-v1", "--port", "0", *options], catch_exceptions=False)
