"""A run that stores each frame of stacked observations once, compressed, is smaller and otherwise the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.storage.refs import ShardRef
from penstock.storage.shards.codec import decode_shard
from penstock.storage.shards.reader import open_shard
from penstock.tasks.data.datasets.minari import export_run, spaces_of
from penstock.tasks.data.datasets.torch_dataset import TrajectoryDataset

from ...support.processes.commands import Cluster
from ..conftest import Bench, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.shards.specs import Spec

    from ...support.stored.stored_run import StoredRun

HEADER = """
#include <penstock/library.hpp>

struct Film {
  static constexpr penstock::Info info{.id = "Film-v0", .max_episode_steps = 9};
  static constexpr penstock::Discrete<2> action{};
  static constexpr auto observation = penstock::BoxOf<std::uint8_t, 4, 64>::filled(0, 255);
  struct Config {
    PENSTOCK_FIELDS(Config)
  } config;
  struct State {
    std::array<std::int64_t, 4> places;
    PENSTOCK_FIELDS(State, places)
  } state;
  void reset(penstock::Rng& rng) { state.places.fill(std::int64_t(rng.uniform(8.0, 56.0))); }
  penstock::Step step(std::int64_t right) {
    std::rotate(state.places.begin(), state.places.begin() + 1, state.places.end());
    state.places[3] = std::clamp<std::int64_t>(state.places[2] + (right ? 3 : -3), 0, 63);
    return {.reward = double(state.places[3] > 31), .terminated = state.places[3] == 0};
  }
  void observe(std::span<std::uint8_t, 256> out) const {
    std::fill(out.begin(), out.end(), std::uint8_t{0});
    for (std::size_t frame = 0; frame < 4; ++frame) out[frame * 64 + std::size_t(state.places[frame])] = 255;
  }
};

PENSTOCK_LIBRARY(Film)
"""
SETTINGS = Settings(stages=2, rounds=12, tiles=2, act_tasks=1)
STORED = ("--shards.compression.observation", "zstd", "--shards.stacked", "observation")


@pytest.fixture
def film_bench(flow_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Start commands and workers that find the environment of an installed package."""
    package = tmp_path / "package"
    (package / "film-1.0.dist-info").mkdir(parents=True)
    (package / "film.hpp").write_text(HEADER)
    (package / "film.py").write_text(
        "from pathlib import Path\n"
        "from penstock import native\n"
        "def load():\n"
        "    native.load(Path(__file__).with_name('film.hpp'), flags=['-O0'])\n"
    )
    metadata = package / "film-1.0.dist-info"
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: film\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[penstock.environments]\nfilm = film:load\n")
    here = {"PYTHONPATH": str(package), "PENSTOCK_CACHE_DIR": str(tmp_path / "libraries")}
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", here["PENSTOCK_CACHE_DIR"])
    (folder := tmp_path / "cluster").mkdir()
    cluster = Cluster(1, 1, here, folder)
    bench = Bench(tmp_path, {**flow_environment, **here}, cluster.address)
    yield bench
    bench.close()
    cluster.close()


def rows_of(run: StoredRun) -> dict[str, np.ndarray]:
    """All rows as whole shards give them, and what was observed where rows have no successor."""
    shards = [decode_shard(run.store.view(ref.name), None, ref.name, ref.digest) for ref in shards_of(run)]
    rows = {name: np.concatenate([shard.columns[name] for shard in shards]) for name in shards[0].columns}
    rows["bootstrap_observation"] = np.concatenate([shard.bootstrap_observation for shard in shards])
    return rows


def shards_of(run: StoredRun) -> list[ShardRef]:
    return [ShardRef.from_json(ref) for commit in run.commits() for ref in commit["shards"]]


def columns_of(run: StoredRun) -> dict[str, Spec]:
    """As the first shard says that they are stored."""
    return open_shard(run.store, shards_of(run)[0]).specs


def stored_bytes(run: StoredRun) -> int:
    return sum(ref.nbytes for ref in shards_of(run))


def learned(run: StoredRun) -> list[tuple[dict[str, float], list[str], str]]:
    """Return each stage's metrics, and digests of its snapshots and checkpoint."""
    return [
        (commit["metrics"], [ref["digest"] for ref in commit["snapshots"]], commit["checkpoint"]["digest"])
        for commit in run.commits()
    ]


@pytest.mark.slow
def test_stacked_and_compressed_observations_change_nothing_but_the_bytes(film_bench: Bench, tmp_path: Path):
    """Killed in its second stage and resumed, such a run has the parameters of a plain one, to the byte.

    Its shards are smaller, and all readers get the same rows: whole shards, the dataset and the export;
    a replay learns from them.
    """
    environment = ("--environment.id", "Film-v0")
    film_bench.train("plain", SETTINGS, *environment).succeed()
    flow, run = film_bench.train("stacked", SETTINGS, *environment, *STORED), film_bench.run("stacked")
    run.wait_for_round(SETTINGS.rounds + 1, flow)
    flow.kill()
    film_bench.resume("stacked").succeed()

    plain = film_bench.run("plain")
    assert learned(run) == learned(plain)
    rows, expected = rows_of(run), rows_of(plain)
    assert rows.keys() == expected.keys()
    assert all(np.array_equal(rows[name], expected[name]) for name in expected)
    forms = [columns_of(each) for each in (run, plain)]
    assert forms[0].pop("observation") == replace(forms[1].pop("observation"), compression="zstd", stacked=True)
    assert forms[0] == forms[1]
    assert stored_bytes(run) < 0.6 * stored_bytes(plain)
    assert run.folder.genesis() != plain.folder.genesis()

    batches, expected_batches = (
        list(TrajectoryDataset(film_bench.store, name, batch_rows=64)) for name in ("stacked", "plain")
    )
    assert len(batches) == len(expected_batches) > 0
    for batch, usual_batch in zip(batches, expected_batches, strict=True):
        assert all(batch[name].equal(usual_batch[name]) for name in usual_batch)

    exported = [export_run(each.folder, tmp_path / each.name, *spaces_of(each.folder)) for each in (run, plain)]
    assert exported[0] == exported[1]

    portions = ("--rounds-per-stage", "4", "--max-stages", "1", "--shards-per-round", "5", "--hidden", "[8]")
    replay = ("replay", "replayed", "--from", "stacked", *portions, "--evaluation-episodes", "4")
    film_bench.penstock(*replay, "--store", film_bench.store, "--scheduler", film_bench.scheduler).succeed()
    assert film_bench.run("replayed").commits()[-1]["env_steps"] > 0
