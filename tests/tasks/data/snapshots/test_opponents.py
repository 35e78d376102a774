"""Self-play: who plays the other side, which rows are stored, and that rounds are a function of what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.storage.errors import ConfigError
from penstock.storage.refs import SnapshotRef
from penstock.storage.runs.commit_schema import Commit
from penstock.tasks.data.snapshots.opponents import SnapshotPlayer, make_acting_pool, make_trial_pool, opponents_of
from penstock.tasks.driver.results import league_after
from penstock.tasks.environments.header import with_header
from penstock.tasks.environments.self_play import draw_players
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.setup.config.environment import LeagueSettings
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.preflight import check_distribution

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext

GAME: dict[str, Any] = {
    "environment": {"id": "ConnectFour-v0", "max_episode_steps": None},
    "schedule": {"round_steps": 40},
    "league": {"opponents": "league"},
}


NIM = """
#include "penstock/library.hpp"
namespace penstock {
struct Nim {
  static constexpr Info info{.id = "test/Nim-v0"};
  static constexpr Discrete<3> action{};
  static constexpr auto observation = BoxOf<float, 2>::filled(-1, 30);
  struct Config { bool turns = false; PENSTOCK_FIELDS(Config, turns) } config;
  struct State { std::int64_t pile; std::int64_t last; PENSTOCK_FIELDS(State, pile, last) } state;
  void reset(Rng&) { state = {30, -1}; }
  Step step(std::int64_t taken, Rng& rng) {
    take(taken);
    if (state.pile <= 0) return {.reward = 1.0, .terminated = true};
    if (config.turns) return {};
    take(rng.integers(0, 3));
    return {.reward = state.pile <= 0 ? -1.0 : 0.0, .terminated = state.pile <= 0};
  }
  void take(std::int64_t taken) { state.pile -= taken + 1, state.last = taken; }
  void observe(std::span<float, 2> out) const { out[0] = float(state.pile), out[1] = float(state.last); }
};
}
PENSTOCK_LIBRARY(penstock::Nim)
"""
"""A game without a mask of allowed moves, which shows the move before."""


def nim(make_context: MakeContext, folder: Path, text: str) -> RunContext:
    header = folder / "nim.hpp"
    header.write_text(text, encoding="utf-8")
    environment = {"header": str(header), "num_envs": 24, "envs_per_tile": 24, "max_episode_steps": None}
    schedule = {"round_steps": 40, "rounds_per_stage": 2, "max_stages": 2}
    values = {"environment": environment, "schedule": schedule, "league": {"opponents": "league", "opening_moves": 2}}
    config = with_header(build_config({"name": "small", "seed": 5, **values}))
    return make_context(config.model_dump(mode="json", exclude={"store", "cluster"}))


def acted(context, actor, params):
    buffers = RoundBuffers(context, actor.tile)
    result = actor.act_round(0, params, buffers)
    return {name: array.copy() for name, array in buffers.arrays.items()}, result


def test_rounds_hold_the_learners_moves_alone(make_context: MakeContext):
    """Each board has as many pieces of both players, or one more of the opponent's where that began, in turn."""
    context = make_context({**GAME, "environment": {**GAME["environment"], "num_envs": 48, "envs_per_tile": 24}})
    params = context.algorithm.init(1).params
    actor = TileActor(context, 1)
    actor.start()
    columns, result = acted(context, actor, params)
    boards = columns["observation"][..., 7:].reshape(40, 24, 42, 2).sum(2, dtype=int)
    more = boards[..., 1] - boards[..., 0]
    assert np.array_equal(more, (columns["env_id"] + columns["episode_id"]) % 2)
    ended = columns["terminated"] == 1
    assert ended.sum() == len(result.end.episodes["row"]) > 50
    assert np.array_equal(columns["reward"][ended], result.end.episodes["return"])
    assert {-1.0, 1.0} <= set(columns["reward"][ended].tolist())
    assert not columns["reward"][~ended].any()
    assert len(result.end.bootstrap_rows) == len(np.unique(result.end.bootstrap_rows)) >= ended.sum()


def test_openings_are_of_every_length_and_leave_the_turns(make_context: MakeContext):
    """Episodes begin after 0 to 9 random moves, whose games can end before that; the learner begins in turn as ever."""
    league = {"opponents": "league", "opening_moves": 9}
    environment = {**GAME["environment"], "num_envs": 64, "envs_per_tile": 64}
    context = make_context({**GAME, "environment": environment, "league": league})
    params = context.algorithm.init(1).params
    actor = TileActor(context, 0)
    actor.start()
    columns, result = acted(context, actor, params)
    pieces = columns["observation"][..., 7:].reshape(40, 64, 42, 2).sum(2, dtype=int)
    assert np.array_equal(pieces[..., 1] - pieces[..., 0], (columns["env_id"] + columns["episode_id"]) % 2)
    boards = columns["observation"][..., 7:].astype(bool).reshape(-1, 42, 2)
    assert not (boards[..., 0] & boards[..., 1]).any()
    begins = np.vstack([np.ones((1, 64), dtype=bool), columns["terminated"][:-1] == 1])
    lengths = np.bincount(pieces.sum(-1)[begins])
    assert len(lengths) in (10, 11), "the other side moves after an opening of 9 moves where it is its turn"
    assert (lengths[:10] > 0).all()
    ended = result.end.episodes["length"] == 0
    assert not ended.any()


@pytest.mark.slow
def test_without_a_mask_every_move_is_allowed_to_the_first_opponent(make_context: MakeContext, tmp_path):
    """Each of them comes up, about as often as the others, in replies and in openings alike."""
    context = nim(make_context, tmp_path, NIM)
    actor = TileActor(context, 0)
    actor.start()
    columns, _ = acted(context, actor, context.algorithm.init(1).params)
    replies = columns["observation"][..., 1].ravel().astype(int)
    counts = np.bincount(replies + 1, minlength=4)[1:]
    assert counts.sum() > 500
    assert counts.min() > 0.8 * counts.max()


@pytest.mark.parametrize(("opponents", "versions"), [("environment", 0), ("latest", 1), ("league", 4)])
def test_a_trial_plays_against_as_many_versions_as_a_run(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch, opponents, versions
):
    """Those of a full league: their moves take most of a round's time, and capacity is planned by it."""
    league = {"opponents": opponents, **({"size": 3} if opponents == "league" else {})}
    context = make_context({**GAME, "league": league})
    params = context.algorithm.init(1).params
    moved: set[int] = set()
    move = SnapshotPlayer.__call__

    def watched(player: SnapshotPlayer, *seen: Any) -> Any:
        moved.add(id(player))
        return move(player, *seen)

    monkeypatch.setattr(SnapshotPlayer, "__call__", watched)
    actor = TileActor(context, 0, make_trial_pool(context, 0, params))
    actor.start()
    for _ in range(8):
        acted(context, actor, params)
    assert len(moved) == versions


@pytest.mark.parametrize("opening_moves", [0, 9])
def test_a_restored_tile_acts_the_same_bytes(make_context: MakeContext, opening_moves):
    """From the state after a round, another pool makes the next round as the first one does, state included."""
    context = make_context({**GAME, "league": {"opponents": "league", "opening_moves": opening_moves}})
    params = context.algorithm.init(1).params
    actor = TileActor(context, 0)
    actor.start()
    _, first = acted(context, actor, params)
    again = TileActor(context, 0, make_acting_pool(context, 0, None))
    again.restore(first.state, 1)
    one, two = acted(context, actor, params), acted(context, again, params)
    for name, array in one[0].items():
        assert np.array_equal(array, two[0][name]), name
    assert all(np.array_equal(value, two[1].state[name]) for name, value in one[1].state.items())


def test_the_draw_is_a_function_of_seed_round_and_environment():
    """Any part of the environments gets what all of them do; rounds differ; shares are the probabilities."""
    ids, cumulative = np.arange(20_000), np.cumsum([0.1, 0.2, 0.7])
    drawn = draw_players(5, 3, ids, cumulative)
    assert np.array_equal(draw_players(5, 3, ids[700:900], cumulative), drawn[700:900])
    assert not np.array_equal(draw_players(5, 4, ids, cumulative), drawn)
    assert np.bincount(drawn) / len(ids) == pytest.approx([0.1, 0.2, 0.7], abs=0.02)


def ref(version: int) -> SnapshotRef:
    return SnapshotRef(name=f"snapshots/{version:08d}-x.safetensors", digest="x", nbytes=1, version=version)


def commit(stage: int, league: tuple[SnapshotRef, ...] | None) -> Commit:
    last = ref(10 * stage + 10)
    return Commit(stage, "p", (0, 1), 1, 1, 1, (), (), (last,), last, {}, None, None, league)


def test_the_league_follows_from_the_log_and_is_named_by_the_commit():
    """Every second stage adds its last version, and the newest two stay; what a commit names is kept with it."""
    settings = LeagueSettings(opponents="league", size=2, add_every_stages=2, latest_probability=0.4)
    before = None
    for stage in range(7):
        league = league_after(settings, stage, before, ref(10 * stage + 10))
        before = commit(stage, league)
    assert before is not None
    assert [one.version for one in before.league or ()] == [40, 60]
    assert set(before.league or ()) < set(before.resumed_from)
    config = build_config({**GAME, "league": settings.model_dump()})
    assert [(one.version, share) for one, share in opponents_of(config, before)] == [(40, 0.3), (60, 0.3), (70, 0.4)]
    assert opponents_of(config, None) == []
    assert league_after(LeagueSettings(opponents="latest"), 3, before, ref(40)) is None


def test_runs_without_a_league_are_stored_as_before():
    """Neither their settings nor their identity has the table."""
    assert "league" not in build_config({}).model_dump(mode="json")
    assert "league" not in build_config({}).identity()
    assert "league" in build_config(GAME).identity()


def test_a_league_without_openings_is_identified_as_before():
    """Runs that were stored before there were openings continue."""
    assert build_config(GAME).identity()["league"] == {
        "opponents": "league",
        "size": 8,
        "add_every_stages": 1,
        "latest_probability": 0.5,
    }
    opened = build_config({**GAME, "league": {"opponents": "latest", "opening_moves": 4}}).identity()["league"]
    assert opened["opening_moves"] == 4


@pytest.mark.slow
def test_a_game_that_cuts_its_episodes_is_refused(make_context: MakeContext, tmp_path):
    """Its last row would be followed by the other player's view, from which the learner's return can't go on."""
    cut = NIM.replace("if (config.turns) return {};", "if (config.turns) return {.truncated = state.pile < 20};")
    assert cut != NIM
    context = nim(make_context, tmp_path, cut)
    actor = TileActor(context, 0)
    actor.start()
    with pytest.raises(ValueError, match=r"test/Nim-v0 truncated an episode by the learner's move, expected a game"):
        acted(context, actor, context.algorithm.init(1).params)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"league": {"opponents": "latest", "size": 3}}, r"size = 3 has no effect with opponents = 'latest'"),
        ({"league": {"opening_moves": 3}}, r"opening_moves = 3 has no effect with opponents = 'environment'"),
        ({"algorithm": {"name": "dqn"}}, r"algorithm.name = 'dqn', expected ppo or impala"),
        ({"algorithm": {"network": "recurrent", "sequence_steps": 8}}, r"'recurrent' needs a memory"),
        ({"environment": {"id": "ConnectFour-v0", "max_episode_steps": 9}}, r"max_episode_steps = 9 would count"),
        ({"environment": {"id": "CartPole-v1"}}, r"'CartPole-v1' has no setting 'turns'"),
        ({"environment": {"id": "ConnectFour-v0", "settings": {"turns": True}}}, r"settings.turns = True is set by"),
        ({"distribution": {"policy": "gpu_only"}}, r"'gpu_only' steps environments on the learner's device"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(changes, said):
    """The message names the setting, and what would be right."""
    with pytest.raises(ConfigError, match=said):
        check_distribution(build_config({**GAME, **changes}))


@pytest.mark.slow
def test_a_game_with_a_time_limit_of_its_own_is_refused(tmp_path):
    """The learner's last move is followed by the other player's view, from which its return can't go on."""
    header = tmp_path / "nim.hpp"
    header.write_text(NIM.replace('.id = "test/Nim-v0"', '.id = "test/ShortNim-v0", .max_episode_steps = 4'))
    environment = {"id": "test/ShortNim-v0", "header": str(header), "max_episode_steps": None}
    with pytest.raises(ConfigError, match=r"are cut after 4 moves of both players .*, expected none"):
        check_distribution(build_config({**GAME, "environment": environment}))
