"""Measures EnvPool's environments by processor time, in one thread: steps per second that the process has run.

python envpool_processor_time.py --id CheetahRun-v1 --num-envs 64
"""

from __future__ import annotations

import argparse
import time

import envpool
import numpy as np
from measure import print_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    pool = envpool.make_gymnasium(args.id, num_envs=args.num_envs, num_threads=1)
    pool.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (256, args.num_envs, *pool.action_space.shape))
    steps, started, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < args.seconds:
        pool.step(actions[steps % len(actions)].astype(pool.action_space.dtype))
        steps += 1
    print_result({"env_steps_per_processor_second": steps * args.num_envs / (time.process_time() - processor)})


if __name__ == "__main__":
    main()
