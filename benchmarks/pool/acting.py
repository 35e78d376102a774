"""Measures acting alone, with Penstock's own tiles: environment steps per second, with and without writing shards.

Shards are written as in a run: the round writer encodes, hashes and stores them in a folder in the background, while
the next round is acted. Only the notification of a learner is omitted, because there is no learner. The two variants
alternate, window by window.

    python -m benchmarks.pool.acting --num-envs 64 1024
"""

from __future__ import annotations

import argparse
import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.peers.measure import machine, print_result
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import describe_run
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.run_context import RunContext, load_context
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.dry_run import NullMembership

if TYPE_CHECKING:
    from penstock.tasks.setup.config.run import TrainConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--round-steps", type=int, default=128)
    parser.add_argument("--window-seconds", type=float, default=1.0)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {str(num_envs): measure(num_envs, args) for num_envs in args.num_envs}
    print_result(
        {
            "benchmark": "acting alone",
            "system": "Penstock",
            "environment": "CartPole-v1",
            "round_steps": args.round_steps,
            "by_num_envs": results,
            "machine": machine(["penstock-rl", "torch", "numpy", "pyarrow"]),
        }
    )


def measure(num_envs: int, args: argparse.Namespace) -> dict[str, float]:
    config = build_config(
        {
            "name": f"acting-{num_envs}",
            "seed": args.seed,
            "environment": {"num_envs": num_envs, "envs_per_tile": num_envs},
            "schedule": {"round_steps": args.round_steps},
        }
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        assignment, context = make_run(config, folder)
        params = context.algorithm.init(args.seed).params
        plain, writing = TileActor(context, 0), TileActor(context, 0)
        plain.start()
        writing.start()
        buffers = RoundBuffers(context, 0)
        writer = RoundWriter(assignment, context, NullMembership(), {}, {})  # type: ignore[arg-type]

        def act_plain() -> None:
            plain.act_round(0, params, buffers)

        def act_writing() -> None:
            writer.submit(writing.act_round(0, params, writer.buffers(writing)))

        windows = [
            (rate(act_plain, plain, args.window_seconds), rate(act_writing, writing, args.window_seconds))
            for _ in range(args.windows + 1)
        ][1:]
        writer.finish()
        writer.close()
    return {
        "env_steps_per_second": median(plain_rate for plain_rate, _ in windows),
        "env_steps_per_second_best": max(plain_rate for plain_rate, _ in windows),
        "env_steps_per_second_writing": median(writing_rate for _, writing_rate in windows),
        "writing_share": median(writing_rate / plain_rate for plain_rate, writing_rate in windows),
    }


def rate(act: Any, actor: TileActor, seconds: float) -> float:
    rounds = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        act()
        rounds += 1
    return rounds * actor.round_steps / elapsed


def make_run(config: TrainConfig, folder: str) -> tuple[Assignment, RunContext]:
    root = open_store(folder)
    RunFolder(root, str(config.name)).create(describe_run(config))
    assignment = Assignment(
        store=root.url,
        run=str(config.name),
        stage=0,
        attempt=0,
        generation=1,
        gang="",
        role="act",
        replica=0,
        replicas=1,
        task_run="",
        cache_folder=f"{folder}/cache",
        device="cpu",
    )
    return assignment, load_context(assignment)


if __name__ == "__main__":
    main()
