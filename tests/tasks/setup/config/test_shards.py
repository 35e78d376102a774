"""Columns of a run's shards: known before anything that needs torch is imported, and stored as configured."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock import native
from penstock.storage.errors import ConfigError
from penstock.storage.shards.specs import Spec
from penstock.tasks.model.algorithms.registry import make_algorithm
from penstock.tasks.setup.config.algorithm_base import NetworkSettings, _implementations
from penstock.tasks.setup.config.shards import ShardSettings, shard_columns, stored_as
from penstock.tasks.specs import EnvironmentSpec

if TYPE_CHECKING:
    from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings

    from ...conftest import MakeContext

FRAMES = shard_columns(Spec("uint8", (4, 6)), Spec("float32"), {"action": Spec("int64")})


def test_columns_are_stored_as_configured():
    """Columns that are not named stay plain; a column may be both."""
    shards = ShardSettings(compression={"observation": "zstd", "reward": "zstd"}, stacked=("observation",))
    stored = stored_as(FRAMES, shards)
    assert stored["observation"] == Spec("uint8", (4, 6), "zstd", stacked=True)
    assert stored["reward"] == Spec("float32", (), "zstd")
    assert {name for name, spec in stored.items() if spec == FRAMES[name]} == {*FRAMES} - {"observation", "reward"}
    assert list(stored) == list(FRAMES)
    assert stored_as(FRAMES, ShardSettings()) == FRAMES


@pytest.mark.parametrize("shards", [{"compression": {"pixels": "lz4"}}, {"stacked": ["pixels"]}])
def test_a_column_that_there_is_not_is_refused(shards: dict[str, object]):
    """With those that there are."""
    with pytest.raises(ConfigError, match=r"no column pixels; there are: observation, reward, .*policy_version"):
        stored_as(FRAMES, ShardSettings.model_validate(shards))


@pytest.mark.parametrize("kind", _implementations)
def test_settings_know_the_columns_of_their_algorithm(make_context: MakeContext, kind: type[AlgorithmSettings]):
    """The flow refuses by them without torch; the algorithm, which needs it, has the same."""
    settings = kind()
    environment = make_context().environment
    if kind.several_agents:
        pool = native.make("simple_spread_v3", 1)
        environment = EnvironmentSpec.from_pool("simple_spread_v3", dict(pool.environment))
    algorithm = make_algorithm(settings, environment)
    assert tuple(algorithm.rows) == settings.columns
    if issubclass(kind, NetworkSettings):
        settings = kind.model_validate({"network": "recurrent"})
        algorithm = make_algorithm(settings, environment)
        assert tuple(algorithm.rows) == settings.columns


def test_a_run_stores_columns_as_configured(make_context: MakeContext):
    """Members of a run see the columns that its settings name."""
    context = make_context({"shards": {"compression": {"log_probability": "lz4"}}})
    assert context.columns["log_probability"] == Spec("float32", (), "lz4")


def test_columns_are_known_without_torch():
    """The process that drives a run starts quickly."""
    program = (
        "import sys, penstock.tasks.setup.config.shards, penstock.tasks.setup.planning.preflight\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
