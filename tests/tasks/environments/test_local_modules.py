"""A user's own modules are found where the command was started, as environments too."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from penstock.flows.cli.main import app
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.local_modules import search_working_directory
from penstock.tasks.environments.typed_settings import with_typed_settings
from penstock.tasks.setup.config.loading import build_config

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Mine(CartPoleEnv):
    def __init__(self, gravity: float = 9.8, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.gravity = gravity


gymnasium.register(f"{__name__}-v0", entry_point=Mine, max_episode_steps=50)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Write a module into the working directory, in which Python does not look; return its name."""
    name = re.sub(r"\W", "_", request.node.name)
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in {"", str(tmp_path)}])
    return name


def test_it_comes_last_and_once(module: str, tmp_path: Path):
    """Nothing in it shadows an installed package."""
    before = list(sys.path)
    assert search_working_directory() == search_working_directory() == tmp_path
    assert sys.path == [*before, str(tmp_path)]


@pytest.mark.parametrize("prefix", ["", "gymnasium/"])
def test_an_environment_of_the_working_directory_is_made(module: str, prefix: str):
    config = build_config({"environment": {"id": f"{prefix}{module}:{module}-v0"}})
    with closing(make_pool(config, 2)) as pool:
        assert pool.reset(seed=1)[0].shape == (2, 4)


def test_its_settings_have_the_types_of_its_class(module: str):
    """A whole number is stored as the float that its constructor expects."""
    environment = {"id": f"{module}:{module}-v0", "settings": {"gravity": 4}}
    typed = with_typed_settings(build_config({"environment": environment}))
    assert repr(typed.environment.settings["gravity"]) == "4.0"


def test_it_can_be_checked(module: str):
    found = CliRunner().invoke(app, ["check-env", f"{module}:{module}-v0"])
    assert "all is well" in found.output
    assert found.exit_code == 0
