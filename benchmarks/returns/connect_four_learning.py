"""Measures how well self-play learns connect four, from a finished run: wins and Elo ratings by part of the training.

The number of a part is the share of games that its last version wins against minimax of depth 4, in percent; beside it
are the share against random moves, and the Elo rating among all parts' versions, minimax and random moves, relative to
random moves. Versions play greedily and look at no move ahead, but for a last figure: the last version that searches
four moves ahead, with the values of its own network where minimax counts open lines. `connect_four.py` has the players
and says how games begin.

    penstock train connect-four --name self-play
    python -m benchmarks.returns.connect_four_learning --run self-play
    python -m benchmarks.returns.connect_four_learning --policy random
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock
from benchmarks.peers.measure import machine, print_result
from benchmarks.returns.connect_four import ENVIRONMENT, Minimax, Uniform, elo, has_values, learned_values, play
from penstock.storage.runs.run import open_run
from penstock.tasks.inference.finding import find_snapshot

if TYPE_CHECKING:
    from benchmarks.returns.connect_four import Player
    from penstock.tasks.inference.policy import Policy

DEPTH = 4
"""Moves that minimax looks ahead."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=["run", "random"], default="run")
    parser.add_argument("--run", help="name of a run of self-play")
    parser.add_argument("--store", default="runs")
    parser.add_argument("--environment", choices=[ENVIRONMENT], default=ENVIRONMENT)
    parser.add_argument("--games", type=int, default=200, help="of each pair of players")
    parser.add_argument("--parts", type=int, default=10, help="points of a curve")
    parser.add_argument("--seed", type=int, default=1, help="of openings and of the players' chance")
    args = parser.parse_args()
    if (args.policy == "run") != (args.run is not None):
        parser.error("give either --run NAME, for the policy of a run, or --policy random")
    started = time.perf_counter()
    if args.policy == "random":
        found, steps = random_figures(args.games, args.parts, args.seed), 0
    else:
        policies = policies_by_part(args.run, args.store, args.parts)
        found, steps = figures(policies, args.games, args.seed), policies[-1].origin.env_steps
    print_result(
        {
            "benchmark": "connect four",
            "system": "random actions" if args.policy == "random" else "penstock",
            "environment": ENVIRONMENT,
            "seed": args.seed,
            "games": args.games,
            "env_steps": steps,
            **found,
            "seconds": time.perf_counter() - started,
            "machine": machine(["penstock-rl", "torch", "numpy"]),
        }
    )


def policies_by_part(run: str, store: str, parts: int) -> list[Policy]:
    """Return the last policy of each part of a run; the parts are as equal as whole stages allow.

    Raises:
        SystemExit: the run has fewer stages than parts.
    """
    folder = open_run(run, store)
    stages = find_snapshot(folder, "newest")[0].stage + 1
    if stages < parts:
        sys.exit(f"run '{run}' has {stages} stages, expected at least {parts}: train it longer, or give fewer --parts")
    ends = [stages * part // parts - 1 for part in range(1, parts + 1)]
    return [penstock.load_policy(run, folder.log.read(stage).version, store=store) for stage in ends]


def random_figures(games: int, parts: int, seed: int) -> dict[str, Any]:
    """Return what costs nothing: random moves against minimax and against other random moves, the same in all parts."""
    against = {"minimax": Minimax(DEPTH, seed), "random": Uniform(seed + 1)}
    won = {name: percent_won(Uniform(seed), other, games, seed) for name, other in against.items()}
    return {
        "returns_by_stage": [won["minimax"]] * parts,
        "wins_against_random": [won["random"]] * parts,
        "elo": [0.0] * parts,
    }


def figures(policies: list[Policy], games: int, seed: int) -> dict[str, Any]:
    """Return shares of games won, in percent, and Elo ratings, one of each by policy."""
    players: list[Player] = [Uniform(seed), Minimax(DEPTH, seed), *(policy.act for policy in policies)]
    wins = np.zeros((len(players), len(players)))
    for one, two in combinations(range(len(players)), 2):
        results = play(players[one], players[two], games, seed=seed * len(players) ** 2 + one * len(players) + two)
        wins[one, two], wins[two, one] = (results > 0).sum(), (results < 0).sum()
    lost = wins.T
    draws = (games - wins - lost) * (1 - np.eye(len(players)))
    ratings = elo(wins + draws / 2)
    found: dict[str, Any] = {
        "returns_by_stage": (100 * wins[2:, 1] / games).tolist(),
        "wins_against_random": (100 * wins[2:, 0] / games).tolist(),
        "elo": (ratings - ratings[0])[2:].tolist(),
        "minimax_elo": float(ratings[1] - ratings[0]),
    }
    if has_values(policies[-1]):
        ahead = Minimax(DEPTH, seed, partial(learned_values, policies[-1]))
        share = percent_won(ahead, Minimax(DEPTH, seed + 1), games, seed)
        found["wins_looking_ahead"] = [None] * (len(policies) - 1) + [share]
    return found


def percent_won(one: Player, two: Player, games: int, seed: int) -> float:
    """Return the share of games that the first player wins; a draw is no win."""
    return 100 * float((play(one, two, games, seed=seed) > 0).mean())


if __name__ == "__main__":
    main()
