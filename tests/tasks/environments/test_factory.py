"""`make_pool`: what an environment lacks is named, with what to install, before anything starts."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["mujoco"] = None
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.setup.config.loading import build_config, load_preset
try:
    make_pool(build_config(load_preset("halfcheetah")), 1)
except ConfigError as error:
    print(error)
"""


def test_a_missing_library_of_an_environment_is_a_mistake_in_the_configuration() -> None:
    """MuJoCo is an extra: without it the user reads what to install, and no traceback."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("environment: the MuJoCo tasks need mujoco")
    assert "pip install 'penstock-rl[mujoco]'" in found.stdout
