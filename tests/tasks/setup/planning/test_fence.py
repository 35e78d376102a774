"""A store that lets two flows write one commit is refused for runs whose bytes may differ, unless that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import describe_run
from penstock.tasks.environments.header import with_header
from penstock.tasks.setup.config.loading import build_config, merge
from penstock.tasks.setup.config.replay import build_replay_config
from penstock.tasks.setup.planning import fence
from penstock.tasks.setup.planning.resolve import resolve

from ....storage.stores.test_probe import ForgetfulFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.tasks.setup.config.run import TrainConfig

QUORUM = {
    "environment": {"num_envs": 8, "envs_per_tile": 2},
    "distribution": {"act_tasks": 4, "quorum": 0.75},
}
STALE = {
    "environment": {"num_envs": 8, "envs_per_tile": 2},
    "distribution": {"policy": "central", "learn_tasks": 2, "max_staleness": 3},
}
ALLOWED = {"cluster": {"allow_unfenced": True}}


@pytest.fixture
def unfenced() -> Iterator[str]:
    """Return the url of a store that ignores conditions of creation."""
    fsspec.register_implementation("forgetful", ForgetfulFileSystem, clobber=True)
    yield "forgetful://runs"
    ForgetfulFileSystem.store.clear()


def config_of(store: str, *values: Any) -> TrainConfig:
    settings: dict[str, Any] = {"name": "mine", "store": store}
    for more in values:
        settings = merge(settings, more)
    return build_config(settings)


def create(config: TrainConfig, **changed: Any) -> RunFolder:
    run = RunFolder(open_store(config.store), str(config.name))
    run.create({**describe_run(config), **changed})
    return run


@pytest.mark.parametrize(
    ("settings", "reason"),
    [(QUORUM, "distribution.quorum = 0.75"), (STALE, "distribution.max_staleness = 3")],
    ids=["quorum", "max_staleness"],
)
def test_bytes_that_may_differ_need_a_fence(unfenced: str, settings: Any, reason: str):
    """Nothing was started or stored; the error says what was found, what is needed and what to do."""
    with pytest.raises(ConfigError) as refused:
        resolve(config_of(unfenced, settings), "refuse")
    for said in (unfenced, reason, "quorum 1 without max_staleness", "--allow-unfenced", "another store"):
        assert said in str(refused.value)
    assert open_store(unfenced).list() == []
    assert resolve(config_of(unfenced, settings, ALLOWED), "refuse").is_fenced is False


def test_the_same_bytes_need_no_fence(unfenced: str):
    """Two flows then write the same commit. The run knows nevertheless that its store is unfenced."""
    assert resolve(config_of(unfenced), "refuse").is_fenced is False
    create(config_of(unfenced))
    assert resolve(config_of(unfenced), "resume").is_fenced is False


@pytest.mark.parametrize("changed", ["instruction_sets", "torch"])
def test_a_run_that_continues_elsewhere_needs_a_fence(unfenced: str, changed: str):
    """Another processor or other software may give other bytes."""
    config = config_of(unfenced)
    made_with = describe_run(config)["made_with"]
    assert isinstance(made_with, dict)
    create(config, made_with={**made_with, changed: "another"})
    with pytest.raises(ConfigError, match=rf"other software or hardware \({changed} another -> .*--allow-unfenced"):
        resolve(config, "resume")
    assert resolve(config_of(unfenced, ALLOWED), "resume").is_fenced is False


@pytest.mark.slow
def test_a_run_of_a_header_or_a_package_continues_with_what_made_it(unfenced: str, tmp_path):
    """Its compiler and its environment's packages are compared with those that are here."""
    header = tmp_path / "cart.hpp"
    header.write_text(
        """#include <penstock/library.hpp>
        #include <penstock/envs/cartpole.hpp>
        struct Cart : penstock::CartPole { static constexpr penstock::Info info{.id = "test/Cart-v0"}; };
        PENSTOCK_LIBRARY(Cart)
        """,
        encoding="utf-8",
    )
    for name, environment in {"header": {"header": str(header)}, "package": {"id": "InvertedPendulum-v5"}}.items():
        config = with_header(config_of(unfenced, {"name": name, "environment": environment}))
        create(config)
        assert resolve(config, "resume").is_fenced is False


def test_the_stored_quorum_counts(unfenced: str):
    """A flow that resumes may leave all settings but name, store and cluster out."""
    create(config_of(unfenced, QUORUM, ALLOWED))
    with pytest.raises(ConfigError, match="created with a quorum below 1"):
        resolve(config_of(unfenced), "resume")
    assert resolve(config_of(unfenced, ALLOWED), "resume").is_fenced is False


def test_allowing_it_is_no_part_of_a_run():
    """It changes neither the identity nor what is stored, and may be given at each start."""
    plain, allowed = config_of("runs", QUORUM), config_of("runs", QUORUM, ALLOWED)
    assert plain.identity() == allowed.identity()
    assert describe_run(plain)["config"] == describe_run(allowed)["config"]


def test_a_store_that_creates_exclusively_is_fenced_for_all(tmp_path, monkeypatch):
    """A folder always is, without further requests; another store is probed once more where bytes may differ."""
    races: list[str] = []
    real = fence.always_has_one_winner
    monkeypatch.setattr(fence, "always_has_one_winner", lambda root: races.append(root.url) or real(root))
    assert resolve(config_of(str(tmp_path), QUORUM), "refuse").is_fenced
    assert resolve(config_of("memory://plain"), "refuse").is_fenced
    assert races == []
    assert resolve(config_of("memory://quorum", QUORUM), "refuse").is_fenced
    assert races == ["memory://quorum"]


def test_a_replay_promises_the_same_bytes():
    """It acts nothing, and its shards are pinned."""
    assert build_replay_config({"source": {"runs": ["one"]}}).promises_same_bytes
    assert not config_of("runs", QUORUM).promises_same_bytes
