"""Measures Penstock's pool alone, in the same stepping loop as its peers (`peers/stepping.py`).

python -m benchmarks.pool.stepping --id CartPole-v1 --num-envs 1024 --num-threads 2 --actions discrete:2
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from benchmarks.peers.measure import print_result, process_pss_bytes
from benchmarks.peers.stepping import measure, random_actions
from penstock import native


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--actions", required=True)
    parser.add_argument("--mode", choices=["sync", "async", "start"], default="sync")
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    print_result({"sync": sync, "async": asynchronous, "start": start}[args.mode](args))


def sync(args: argparse.Namespace) -> dict[str, float]:
    pool = native.make(args.id, args.num_envs, args.num_threads)
    pool.reset(seed=0)

    def step(actions: Any) -> tuple[Any, Any]:
        _, _, terminated, truncated, _ = pool.step(actions)
        return terminated, truncated

    dtype = "int64" if args.actions.startswith("discrete") else "float32"
    actions = random_actions(args.actions, args.num_envs, dtype)
    return {"env_steps_per_second": measure(step, actions, args.num_envs, args.seconds, resets_take_a_step=True)}


def asynchronous(args: argparse.Namespace) -> dict[str, float]:
    batch_size = max(1, args.num_envs // 3)
    pool = native.make(args.id, args.num_envs, args.num_threads, batch_size=batch_size)
    pool.async_reset(seed=0)

    def step(actions: Any) -> tuple[Any, Any]:
        _, _, terminated, truncated, info = pool.recv()
        pool.send(actions, info["env_id"])
        return terminated, truncated

    dtype = "int64" if args.actions.startswith("discrete") else "float32"
    actions = random_actions(args.actions, batch_size, dtype)
    return {"env_steps_per_second": measure(step, actions, batch_size, args.seconds, resets_take_a_step=True)}


def start(args: argparse.Namespace) -> dict[str, float]:
    before, started = process_pss_bytes(os.getpid()), time.perf_counter()
    pool = native.make(args.id, args.num_envs, args.num_threads)
    pool.reset(seed=0)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "pss_bytes": process_pss_bytes(os.getpid()) - before}


if __name__ == "__main__":
    main()
