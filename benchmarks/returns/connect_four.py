"""Plays connect four by a run's policies: against random moves, against minimax, and against its own past.

    penstock train connect-four --name self-play
    python -m benchmarks.returns.connect_four self-play

Policies act greedily: they look at the board and at no move ahead. Beside them, as players of their own, the last
version looks ahead as minimax does, with the values of its network in place of open lines. Games begin with two random
moves, so that they differ, and each beginning is played twice, with either player to move first. A rate of wins counts
a draw as no win. Elo ratings are those of the Bradley-Terry model that fits all games best, with a draw as half a win,
and relative to random moves.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import penstock
from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from penstock import native
from penstock.storage.errors import ConfigError, PenstockError
from penstock.storage.runs.run import open_run
from penstock.tasks.inference.finding import find_snapshot
from penstock.tasks.model.nn.network import Network

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock.tasks.inference.policy import Policy

    Player = Callable[[NDArray[np.uint8]], NDArray[np.int64]]
    Bits = NDArray[np.uint64]
    Values = Callable[[Bits, Bits], NDArray[np.int64]]

ROWS, COLUMNS, OPENING = 6, 7, 2
_BOTTOM = np.uint64(1) << np.arange(0, COLUMNS * (ROWS + 1), ROWS + 1).astype(np.uint64)
"""Bit of each column's lowest cell. Above its cells a column has a bit that stays 0, so that no line goes on there."""
_CELLS = np.array([[column * (ROWS + 1) + ROWS - 1 - row for column in range(COLUMNS)] for row in range(ROWS)])
ENVIRONMENT = "ConnectFour-v0"
_WON = 1_000_000
_BOARDS_AT_ONCE = 8192
_BOARD = np.uint64(sum(1 << int(cell) for cell in _CELLS.flat))
_DIRECTIONS = tuple(np.uint64(step) for step in (1, ROWS, ROWS + 1, ROWS + 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--store", default="runs")
    parser.add_argument("--games", type=positive, default=200)
    parser.add_argument("--versions", type=positive, default=6, help="rated versions, evenly spaced over the run")
    parser.add_argument("--depths", type=positive, nargs="+", default=[1, 2, 4], help="moves that minimax looks ahead")
    parser.add_argument(
        "--search",
        type=positive,
        nargs="*",
        default=[2, 4],
        help="moves that the last version looks ahead, by its values",
    )
    parser.add_argument("--name", default="connect-four", help="of the results' files, after the date")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if "/" in args.name:
        parser.error(f"--name {args.name}: a part of file names, without '/'; --results names their folder")
    try:
        policies = load_versions(args.run, args.store, args.versions)
    except PenstockError as error:
        parser.error(str(error))
    last = policies[-1]
    references: dict[str, Player] = {
        "random": Uniform(1),
        **{f"minimax {depth}": Minimax(depth, 2) for depth in args.depths},
    }
    versions: dict[str, Player] = {f"version {policy.origin.version}": policy.act for policy in policies}
    players = {**references, **versions}
    searching: dict[str, Player] = {}
    if has_values(last):
        values = partial(learned_values, last)
        searching = {
            f"version {last.origin.version}, depth {depth}": Minimax(depth, 2, values) for depth in args.search
        }
    names, every = list(players), [*players, *searching]
    wins, rates = np.zeros((len(names), len(names))), {}
    for one, two in combinations(range(len(every)), 2):
        if every[one] not in references and every[two] in searching:
            continue
        pair = [{**players, **searching}[every[number]] for number in (one, two)]
        results = play(pair[0], pair[1], args.games, seed=one * len(every) + two)
        rates[every[two], every[one]] = float((results < 0).mean()), float((results == 0).mean())
        if two < len(names):
            wins[one, two], wins[two, one] = (results > 0).sum(), (results < 0).sum()
            wins[[one, two], [two, one]] += (results == 0).sum() / 2
    ratings = elo(wins)
    rated = dict(zip(names, (ratings - ratings[0]).round().astype(int).tolist(), strict=True))
    head = ("player", "moves learned from", "Elo", *(f"wins against {name}" for name in references))
    steps = {name: f"{policy.origin.env_steps:,}" for name, policy in zip(versions, policies, strict=True)}
    rows = [
        (
            name,
            steps.get(name, ""),
            str(rated.get(name, "")),
            *(f"{rates[name, other][0]:.0%}" if (name, other) in rates else "" for other in references),
        )
        for name in every
    ]
    about = machine(("penstock-rl", "torch"))
    conditions = (
        f"Of {args.games} games each, greedy, after {OPENING} random moves; a draw is no win. Elo is relative to "
        f"random moves. A version with a depth searches so many moves ahead as minimax does, and values what is "
        f"undecided by its own network; the others look at the board alone."
    )
    notes = [conditions, f"Machine: {json.dumps(about)}."]
    raw = {
        "machine": about,
        "games": args.games,
        "elo": rated,
        "rates": [[one, two, *rate] for (one, two), rate in rates.items()],
        "settings": {name: last.settings[name] for name in ("algorithm", "environment", "league", "schedule", "seed")},
    }
    print(write_table(args.results, args.name, this_command(), rows, raw, head=head, notes=notes))


def positive(text: str) -> int:
    """Return the number of an option, 1 or more."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number}: expected 1 or more")
    return number


def load_versions(run: str, store: str, number: int) -> list[Policy]:
    """Return the policies of stages that are evenly spaced over a run, the last one included.

    Raises:
        ConfigError: the run is of another game.
    """
    folder = open_run(run, store)
    if (game := folder.load("config")["config"]["environment"]["id"]) != ENVIRONMENT:
        raise ConfigError(f"run '{run}' is of {game}, expected one of {ENVIRONMENT}")
    last, _ = find_snapshot(folder, "newest")
    stages = np.unique(np.linspace(0, last.stage, number).round().astype(int)).tolist()
    return [penstock.load_policy(run, folder.log.read(stage).version, store=store) for stage in stages]


def play(one: Player, two: Player, games: int, seed: int) -> NDArray[np.int64]:
    """Play games; returns 1 where `one` won, -1 where `two` did and 0 for draws. In even games `one` moves first."""
    pool = native.make(ENVIRONMENT, games, autoreset_mode="Disabled", turns=True)
    observation, _ = pool.reset(seed=seed)
    openings = np.random.default_rng(seed).integers(0, COLUMNS, ((games + 1) // 2, OPENING)).repeat(2, 0)[:games]
    result, going, ply = np.zeros(games, dtype=np.int64), np.ones(games, dtype=bool), 0
    while going.any():
        for player, mover in ((one, 0), (two, 1)):
            rows = np.flatnonzero(going & (np.arange(games) % 2 == (mover + ply) % 2))
            if not len(rows):
                continue
            moves = openings[rows, ply] if ply < OPENING else player(observation[rows])
            seen, reward, ended, _, _ = pool.step_rows(moves, rows.astype(np.int32))
            observation[rows] = seen
            result[rows] = np.where(mover, -reward, reward)
            going[rows[ended]] = False
        ply += 1
    pool.close()
    return result


class Uniform:
    """Makes any allowed move."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def __call__(self, observation: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return a column for each board."""
        noise = self._generator.random((len(observation), COLUMNS))
        return np.where(observation[:, :COLUMNS] != 0, noise, -1.0).argmax(-1)


class Minimax:
    """Searches all moves to a depth, without pruning, for many boards at once; equal moves are chosen by chance.

    It values a win by how soon it comes, and an undecided end by `undecided`: by default by the lines of four that are
    still open, 1, 10 or 50 for one, two or three pieces of a player where the other has none.
    """

    def __init__(self, depth: int, seed: int, undecided: Values | None = None) -> None:
        self._depth = depth
        self._undecided = undecided or (lambda own, other: _open_lines(own, other) - _open_lines(other, own))
        self._generator = np.random.default_rng(seed)

    def __call__(self, observation: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return a column for each board."""
        boards = observation[:, COLUMNS:].reshape(-1, ROWS, COLUMNS, 2).astype(np.uint64)
        own, other = ((boards[..., player] << _CELLS.astype(np.uint64)).sum((1, 2)) for player in range(2))
        values = _values(own, other, self._depth, self._undecided)
        best = values == values.max(1, keepdims=True)
        return np.where(best, self._generator.random(values.shape), -1.0).argmax(-1)


def _values(own: Bits, other: Bits, depth: int, undecided: Values) -> NDArray[np.int64]:
    """Return the value of every move for the mover, `[boards, columns]`; of a forbidden one less than of any other.

    `undecided` gives the values of boards for the player who moves next, between -`_WON` and `_WON`.
    """
    taken = (own | other)[:, None]
    allowed = (taken & (_BOTTOM << np.uint64(ROWS - 1))) == 0
    # Adding the lowest bit carries through a column's pieces to its first free cell.
    moved = own[:, None] | ((taken + _BOTTOM) & ~taken & ((_BOTTOM << np.uint64(ROWS)) - _BOTTOM))
    wins = allowed & has_line(moved)
    value = np.where(wins, _WON + depth, np.where(allowed, 0, -2 * _WON))
    going = allowed & ~wins & (np.bitwise_count(taken) < ROWS * COLUMNS - 1)
    if going.any():
        replies = other[np.nonzero(going)[0]], moved[going]
        value[going] = -(_values(*replies, depth - 1, undecided).max(1) if depth > 1 else undecided(*replies))
    return value


def has_values(policy: Policy) -> bool:
    """Return whether a policy's snapshots hold values too: those of PPO with a shared network do."""
    return policy.settings["algorithm"]["name"] == "ppo" and policy.settings["algorithm"].get("shared_network", False)


@torch.inference_mode()
def learned_values(policy: Policy, own: Bits, other: Bits) -> NDArray[np.int64]:
    """Return the values that the network of a policy with `has_values` gives boards, for the player who moves next."""
    settings, spec = policy.settings["algorithm"], policy.environment
    network = Network(
        settings["network"], spec.policy_input, settings["features"], tuple(settings["hidden"]), spec.facts
    )
    values = np.empty(len(own), dtype=np.int64)
    for start in range(0, len(own), _BOARDS_AT_ONCE):
        rows = slice(start, start + _BOARDS_AT_ONCE)
        cells = [(pieces[rows, None, None] >> _CELLS.astype(np.uint64)) & np.uint64(1) for pieces in (own, other)]
        board = network.prepared(torch.from_numpy(np.stack(cells, -1).astype(np.uint8)))
        output, _ = network.step(policy.params["network"], None, board)
        values[rows] = (output[:, -1].clamp(-1, 1) * (_WON // 2)).numpy().astype(np.int64)
    return values


def has_line(pieces: Bits) -> NDArray[np.bool_]:
    """Return whether a player's pieces have four in a line."""
    found = np.zeros(pieces.shape, dtype=bool)
    for step in _DIRECTIONS:
        pairs = pieces & (pieces >> step)
        found |= (pairs & (pairs >> (step * np.uint64(2)))) != 0
    return found


def _open_lines(own: Bits, other: Bits) -> NDArray[np.int64]:
    """Return the value of the lines of four in which a player has pieces and the other none."""
    total = np.zeros(len(own), dtype=np.int64)
    free = _BOARD & ~other
    for step in _DIRECTIONS:
        two, three = step * np.uint64(2), step * np.uint64(3)
        lines = free & (free >> step) & (free >> two) & (free >> three)
        # Bit by bit, the number of pieces among the four cells of each line: `odd` + 2 * `twos`, and 4 as 0.
        here, there = own ^ (own >> step), (own >> two) ^ (own >> three)
        odd = here ^ there
        twos = (own & (own >> step)) ^ ((own >> two) & (own >> three)) ^ (here & there)
        for worth, which in ((1, odd & ~twos), (10, twos & ~odd), (50, odd & twos)):
            total += worth * np.bitwise_count(lines & which).astype(np.int64)
    return total


def elo(wins: NDArray[np.float64], iterations: int = 2000) -> NDArray[np.float64]:
    """Fit the Bradley-Terry model by minorisation and maximisation (Hunter 2004, doi 10.1214/aos/1079120141).

    Args:
        wins: `[players, players]`: how often each won against each. One more game, drawn, is assumed for every pair
            that played, so that ratings stay finite.
        iterations: of the fit.

    Returns:
        Elo ratings `[players]` with the mean 0.
    """
    played = wins + wins.T
    won = (wins + (played > 0) / 2).sum(1)
    games = played + (played > 0)
    strength = np.ones(len(wins))
    for _ in range(iterations):
        strength = won / (games / (strength[:, None] + strength)).sum(1)
        strength /= np.exp(np.log(strength).mean())
    return 400 * np.log10(strength)


if __name__ == "__main__":
    main()
