"""Times steps of Box2D's tasks in one process and one thread, in CPU time: run it once for each library, by its Python.

    python -m benchmarks.pool.box2d_speed penstock|gymnasium|envpool [--steps 9600]

`penstock` needs penstock-box2d (or `--library box2d.so`, which its build makes), `gymnasium` gymnasium[box2d], and
`envpool` the package envpool. Actions are random, episodes are reset as they end; the best of three rounds counts.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

IDS = ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3")
ENVS = 32


def make(library: str, name: str, path: str | None) -> Any:
    """Make 32 environments of one id: Gymnasium's own loop steps one, without a vector around it."""
    if library == "gymnasium":
        import gymnasium  # noqa: PLC0415

        return gymnasium.make(name, disable_env_checker=True)
    if library == "envpool":
        import envpool  # noqa: PLC0415

        return envpool.make(name, env_type="gymnasium", num_envs=ENVS, num_threads=1, seed=0)
    from penstock import native  # noqa: PLC0415

    if path:
        native.load_library(path)
    return native.make(name, ENVS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("penstock", "gymnasium", "envpool"))
    parser.add_argument("--steps", type=int, default=9600)
    parser.add_argument("--library")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for name in IDS:
        env = make(options.what, name, options.library)
        rows = 1 if options.what == "gymnasium" else ENVS
        discrete = name == "LunarLander-v3"
        size = 4 if "Walker" in name else 2
        draw = (lambda n=rows: rng.integers(0, 4, n).astype(np.int32)) if discrete else None
        actions = [draw() if draw else rng.uniform(-1, 1, (rows, size)).astype(np.float32) for _ in range(64)]
        if rows == 1:
            actions = [int(action[0]) if discrete else action[0] for action in actions]
        env.reset(**({} if options.what == "envpool" else {"seed": 0}))
        best = np.inf
        for _ in range(3):
            began = time.process_time()
            for index in range(options.steps // rows):
                _, _, terminated, truncated, _ = env.step(actions[index % 64])
                if rows == 1 and (terminated or truncated):
                    env.reset()
            best = min(best, time.process_time() - began)
        print(f"{options.what:10s} {name:26s} {best / options.steps * 1e6:8.2f} us/step")


if __name__ == "__main__":
    main()
