"""A run that plays against its own versions is the same under every policy, and after kills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..support.stored_run import assert_same
from .conftest import Settings

if TYPE_CHECKING:
    from .conftest import Bench


@dataclass(frozen=True)
class SelfPlay(Settings):
    """Settings with a league from the second stage on."""

    stages: int = 3
    rounds: int = 4
    tiles: int = 2
    act_tasks: int = 2

    def toml(self) -> str:
        game = super().toml().replace("[environment]", '[environment]\n            id = "ConnectFour-v0"')
        return f'{game}\n[league]\nopponents = "league"\nsize = 2\n'


def test_a_league_gives_the_same_run_wherever_and_after_kills(bench: Bench):
    """Environments stepped elsewhere give the same rows and parameters; a flow that was killed ends with all bytes.

    Collected garbage leaves the opponents of the next stage.
    """
    settings = SelfPlay()
    bench.train("whole", settings).succeed()
    whole = bench.run("whole")
    bench.train("apart", settings, "--policy", "single_learner_fine", "--env-tasks", "2").succeed()
    for mine, theirs in zip(bench.run("apart").commits(), whole.commits(), strict=True):
        for kind in ("shards", "states", "snapshots", "league", "checkpoint"):
            assert mine[kind] == theirs[kind], kind
    flow, run = bench.train("killed", settings), bench.run("killed")
    for round_ in (5, 9):
        run.wait_for_round(round_, flow)
        flow.kill()
        flow = bench.resume("killed")
    flow.succeed()
    assert_same(run, whole.content())
    bench.penstock("gc", "killed", "--store", bench.store).succeed()
    league = run.commits()[-1]["league"]
    assert len(league) == 2
    assert all(run.store.exists(ref["name"]) for ref in league)
    bench.penstock("verify", "killed", "--store", bench.store).succeed()
