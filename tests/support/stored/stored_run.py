"""Read what a run has stored, to compare two runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.storage.refs import parse_shard_name
from penstock.storage.runs.commits import commit_name
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.roles.stepping.protocol import pack_start
from penstock.tasks.setup.config.replay import build_stored_config
from penstock.tasks.setup.distribution.policies import make_policy
from penstock.tasks.setup.planning.calibration_process import sizes_of
from penstock.tasks.setup.planning.dry_run import trial_run
from penstock.tasks.setup.planning.traffic import edge_costs

from ..processes.commands import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.setup.config.run import RunConfig

    from ...end_to_end.conftest import Settings
    from ..processes.commands import Command


class StoredRun:
    """A run in a store."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.url = url
        self.folder = RunFolder(open_store(url), name)
        self.store = self.folder.store

    def content(self) -> dict[str, bytes]:
        """Return everything that interruptions must not change, by name: commits and the objects they refer to."""
        commits = self.commits()
        named = [ref["name"] for commit in commits for ref in commit["snapshots"]]
        named += [ref["name"] for ref in commits[-1]["states"]] if commits else []
        listed = [name for kind in ("shards/", "checkpoints/", "commits/") for name in self.store.list(kind)]
        return {name: self.store.read(name) for name in sorted({*named, *listed})}

    def commits(self) -> list[dict[str, Any]]:
        """Return all commits as they are stored, each intact and built upon the one before."""
        newest = self.folder.log.newest()
        if newest is None:
            return []
        commits = [json.loads(self.store.read(commit_name(stage))) for stage in range(newest.stage + 1)]
        self.folder.log.verify(genesis=commits[0]["parent"])
        return commits

    def timings(self) -> list[dict[str, Any]]:
        return [json.loads(self.store.read(name)) for name in self.store.list("timings/")]

    def stored_rounds(self) -> list[tuple[int, int]]:
        """Return (round, tile) of every shard in the store, committed or not."""
        names = [parse_shard_name(name) for name in self.store.list("shards/")]
        return sorted((name.round, name.tile) for name in names)

    def wait_for_round(self, round_: int, flow: Command) -> None:
        """Wait until a shard of that round is stored; fail if the flow ends first."""
        self._wait(flow, lambda: any(stored >= round_ for stored, _ in self.stored_rounds()), f"a shard of {round_}")

    def wait_for_commit(self, stage: int, flow: Command) -> None:
        """Wait until that stage is committed; fail if the flow ends first."""
        self._wait(flow, lambda: self.store.exists(f"commits/{stage:08d}.json"), f"the commit of stage {stage}")

    def _wait(self, flow: Command, there: Callable[[], bool], what: str) -> None:
        wait_until(lambda: there() or not flow.running, what)
        assert there(), f"the flow ended before there was {what}:\n{flow.output}"


def assert_same(run: StoredRun, expected: dict[str, bytes]) -> None:
    """Check that a run has exactly these names, with these bytes."""
    found = run.content()
    assert sorted(found) == sorted(expected)
    for name, data in expected.items():
        assert found[name] == data, f"{name} differs"


def assert_whole(run: StoredRun, rounds: int, tiles: int, rows: int) -> None:
    """Check that commits name every round of every tile exactly once, with all rows."""
    shards = [ref for commit in run.commits() for ref in commit["shards"]]
    expected = [(round_, tile) for round_ in range(rounds) for tile in range(tiles)]
    assert sorted((ref["round"], ref["tile"]) for ref in shards) == expected
    assert sum(ref["rows"] for ref in shards) == rows == run.commits()[-1]["env_steps"]


def assert_as_predicted(run: StoredRun, settings: Settings) -> None:
    """Assert that an undisturbed run counted on each edge the predicted cost of its distribution."""
    config = build_stored_config(run.folder.load()["config"])
    with trial_run(config) as (assignment, context):
        costs = edge_costs(make_policy(config.distribution), config, sizes_of(assignment, context))
    for timings in run.timings():
        counted = timings["edges"]
        assert set(counted) == {cost.crossing.edge.name for cost in costs}
        for cost in costs:
            nbytes, messages = cost.over(settings.rounds)
            edge = cost.crossing.edge.name
            # Version 0 is published before the first round, and the first stage's links begin with seeds.
            first = timings["stage"] == 0
            assert counted[edge]["rounds"] == messages + (first and edge == "sync -> act"), edge
            if edge == "sync -> act":
                nbytes += first * cost.round_bytes
            if edge == "act -> env":
                nbytes += first * (_seeds_bytes(config) - cost.stage_bytes)
            assert counted[edge]["bytes"] == pytest.approx(nbytes, rel=0.1), edge


def _seeds_bytes(config: RunConfig) -> int:
    """Return the bytes of the seeds that links send first in the first stage."""
    seeds = np.zeros(config.environment.envs_per_tile, np.uint64)
    return config.environment.tiles * len(pack_start(0, True, {"seeds": seeds}))


def damage(store_folder: os.PathLike[str], name: str, kind: str) -> None:
    """Alter one byte of a stored file, truncate it, or empty it, as a bad disk or copy would."""
    path = os.path.join(store_folder, name)  # noqa: PTH118
    with open(path, "rb") as file:  # noqa: PTH123
        data = bytearray(file.read())
    if kind == "altered":
        data[len(data) // 2] ^= 0x40
    elif kind == "cut":
        del data[len(data) * 2 // 3 :]
    else:
        data.clear()
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(data)
