"""Measures EnvPool's environments alone: synchronous, or asynchronous with a third of them in each batch.

python pool_envpool.py --id CartPole-v1 --num-envs 1024 --num-threads 2 --actions discrete:2
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import envpool
from measure import print_result, process_pss_bytes
from stepping import measure, random_actions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--actions", required=True)
    parser.add_argument("--mode", choices=["sync", "async", "start"], default="sync")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--resize", choices=["area", "bilinear"], help="of Atari's frames; ale-py's is area")
    args = parser.parse_args()
    if args.mode == "start":
        print_result(start(args))
        return
    print_result({"env_steps_per_second": sync(args) if args.mode == "sync" else asynchronous(args)})


def settings(args: argparse.Namespace) -> dict[str, Any]:
    return {} if args.resize is None else {"use_inter_area_resize": args.resize == "area"}


def dtype_of(pool: Any) -> str:
    """Return the dtype of actions. EnvPool declares int64 but takes int32; boxes are as declared."""
    return "int32" if pool.action_space.dtype.kind == "i" else str(pool.action_space.dtype)


def sync(args: argparse.Namespace) -> float:
    pool = envpool.make_gymnasium(args.id, num_envs=args.num_envs, num_threads=args.num_threads, **settings(args))
    pool.reset()

    def step(actions: Any) -> tuple[Any, Any]:
        _, _, terminated, truncated, _ = pool.step(actions)
        return terminated, truncated

    actions = random_actions(args.actions, args.num_envs, dtype_of(pool))
    return measure(step, actions, args.num_envs, args.seconds, resets_take_a_step=True)


def asynchronous(args: argparse.Namespace) -> float:
    batch_size = max(1, args.num_envs // 3)
    pool = envpool.make_gymnasium(
        args.id, num_envs=args.num_envs, batch_size=batch_size, num_threads=args.num_threads, **settings(args)
    )
    pool.async_reset()

    def step(actions: Any) -> tuple[Any, Any]:
        _, _, terminated, truncated, info = pool.recv()
        pool.send(actions, info["env_id"])
        return terminated, truncated

    actions = random_actions(args.actions, batch_size, dtype_of(pool))
    return measure(step, actions, batch_size, args.seconds, resets_take_a_step=True)


def start(args: argparse.Namespace) -> dict[str, float]:
    before, started = process_pss_bytes(os.getpid()), time.perf_counter()
    pool = envpool.make_gymnasium(args.id, num_envs=args.num_envs, num_threads=args.num_threads)
    pool.reset()
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "pss_bytes": process_pss_bytes(os.getpid()) - before,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    main()
