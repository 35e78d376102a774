"""Compares all figures with those of peers, in one process tree: Penstock and a peer alternate, seed by seed.

Each peer has an environment of its own, as `benchmarks.support.programs` installs them. Writes a table to
`benchmarks/results/<date>.md`, and the raw results next to it.

    python -m benchmarks.board.figures                      # everything, about half an hour on two cores
    python -m benchmarks.board.figures --only acting solve --seeds 3
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.support.programs import RESULTS, peer, penstock, ratio
from benchmarks.support.tables import write_table

if TYPE_CHECKING:
    from collections.abc import Callable

Result = dict[str, Any]
Row = tuple[str, str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    raw: dict[str, Any] = {}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as home:
        os.environ["PREFECT_HOME"] = home
        from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415  (Prefect reads PREFECT_HOME when it is imported)

        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            for name in args.only:
                found, raw[name] = FIGURES[name](args.seeds)
                rows += found
                for row in found:
                    print(" | ".join(row), flush=True)
    write(args, rows, raw)


def acting(seeds: int) -> tuple[list[Row], Any]:
    rounds = [
        (penstock("pool.acting", "--seed", seed, "--windows", 3), peer("acting", "envpool_acting.py", "--seed", seed))
        for seed in range(1, max(2, seeds // 2) + 1)
    ]
    numpy_pool = peer("acting", "gymnasium_acting.py", "--seed", 1)
    rows: list[Row] = []
    for envs in ("64", "1024"):
        shares = [ours["by_num_envs"][envs]["writing_share"] for ours, _ in rounds]
        rows.append((f"acting with shards written / without, {envs} envs", ratio(shares), ">= 0.9", ""))
        ours_rates = [ours["by_num_envs"][envs]["env_steps_per_second"] for ours, _ in rounds]
        theirs = [peer_["best_by_num_envs"][envs]["env_steps_per_second"] for _, peer_ in rounds]
        rows.append(
            (
                f"acting alone / EnvPool's best, {envs} envs",
                ratio([mine / other for mine, other in zip(ours_rates, theirs, strict=True)]),
                ">= 2",
                f"{median(ours_rates):,.0f} and {median(theirs):,.0f} env steps/s",
            )
        )
    return rows, {"rounds": rounds, "gymnasium": numpy_pool}


def solve(seeds: int) -> tuple[list[Row], Any]:
    # Run each once unmeasured, so that neither is slowed by files that are not in the page cache.
    penstock("board.training", "--seed", 0)
    peer("sb3", "sb3_cartpole.py", "--seed", 0)
    rounds = [
        (penstock("board.training", "--seed", seed), peer("sb3", "sb3_cartpole.py", "--seed", seed))
        for seed in range(1, seeds + 1)
    ]

    def compare(key: str) -> tuple[str, str]:
        mine, other = [ours[key] for ours, _ in rounds], [theirs[key] for _, theirs in rounds]
        return f"{median(mine) / median(other):.2f}", f"{median(mine):,.2f} and {median(other):,.2f}, medians"

    rows: list[Row] = []
    for title, key, reach in (
        ("env steps/s through the whole loop / stable-baselines3", "env_steps_per_second", ">= 10"),
        ("seconds from first step to solved / stable-baselines3", "seconds_to_solved_from_first_step", "< 0.3"),
        ("seconds from command to solved / stable-baselines3", "seconds_to_solved_from_process_start", "< 1.0"),
        ("update rows/s / stable-baselines3", "update_rows_per_second", ""),
        ("env steps until solved / stable-baselines3", "env_steps", ""),
    ):
        value, note = compare(key)
        rows.append((title, value, reach, note))
    for who, result in (("Penstock", rounds[0][0]), ("stable-baselines3", rounds[0][1])):
        rows.append(
            (f"settings of {who}", f"{result['epochs']} epochs", "", f"{result['minibatch_rows']} rows a minibatch")
        )
    solved = [sum(bool(side["solved"]) for side in sides) for sides in zip(*rounds, strict=True)]
    rows.append(("seeds solved, Penstock and stable-baselines3", f"{solved[0]} and {solved[1]}", f"{seeds}", ""))
    return rows, rounds


def orchestration(seeds: int) -> tuple[list[Row], Any]:
    results = [penstock("board.orchestration") for _ in range(max(1, seeds // 2))]
    few = [result["by_act_tasks"]["8"]["orchestration_seconds"] for result in results]
    more = [result["seconds_more_per_act_task"] for result in results]
    return [
        ("orchestration of a stage, 8 act tasks, s", ratio(few), "<= 0.3", ""),
        ("more for each act task up to 64, ms", ratio([1e3 * value for value in more]), "<= 5", ""),
    ], results


def memory(seeds: int) -> tuple[list[Row], Any]:
    rounds = [
        (
            penstock("board.training", "--seed", seed, with_server=False),
            peer("rllib", "rllib_cartpole.py", "--seed", seed),
        )
        for seed in range(1, max(1, seeds // 2) + 1)
    ]
    shares = [ours["peak_pss_bytes"] / theirs["peak_pss_bytes"] for ours, theirs in rounds]
    sizes = [median(side["peak_pss_bytes"] for side in sides) / 1e9 for sides in zip(*rounds, strict=True)]
    note = f"{sizes[0]:.2f} and {sizes[1]:.2f} GB, Prefect's server included"
    return [("peak memory of everything (PSS) / RLlib", ratio(shares), "< 0.8", note)], rounds


FIGURES: dict[str, Callable[[int], tuple[list[Row], Any]]] = {
    "acting": acting,
    "solve": solve,
    "orchestration": orchestration,
    "memory": memory,
}


def write(args: argparse.Namespace, rows: list[Row], raw: dict[str, Any]) -> None:
    command = shlex.join(["python", "-m", "benchmarks.board.figures", "--only", *args.only, "--seeds", str(args.seeds)])
    write_table(args.results, "", command, rows, raw)


if __name__ == "__main__":
    main()
