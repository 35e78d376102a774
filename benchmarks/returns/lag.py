"""Measures the cost of acting with old parameters: returns at lag 0, 1, 2 and 4, of PPO and of IMPALA with V-trace.

The environment is CartPole-v1, and the protocol that of `learning.py`. Both algorithms use the same environments,
rounds, network, learning rate and number of updates, and differ only in the correction. PPO's clipped ratio compares
with the parameters that acted, and its advantages treat the returns of old actions as new; V-trace weights them.

Three numbers are reported: the mean return over all ten stages, which shows how early it learned, that of the last
stage, and that of 100 greedy episodes at the end.

    python -m benchmarks.returns.lag --seeds 3
"""

from __future__ import annotations

import argparse
import os
import tempfile
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.returns.learning import Task, spread, train
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import write_table

_LAGS = (0, 1, 2, 4)
_ENV_STEPS = 300_000
_KINDS = ("whole_return", "acted_return", "greedy_return")
_SAME = {
    "--num-envs": "32",
    "--envs-per-tile": "32",
    "--round-steps": "64",
    "--minibatches": "4",
    "--learning-rate": "2e-3",
    "--hidden": "[32,32]",
}
_ALGORITHMS = {
    "PPO": ("cartpole", ("--epochs", "1")),
    "IMPALA, V-trace": ("cartpole-impala", ()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as home:
        os.environ["PREFECT_HOME"] = home
        from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415  (Prefect reads PREFECT_HOME when it is imported)

        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            for name, (preset, settings) in _ALGORITHMS.items():
                for lag in _LAGS:
                    task = Task(
                        preset, _ENV_STEPS, "", 0.0, settings=(*chain(*_SAME.items()), *settings, "--lag", str(lag))
                    )
                    store = f"{home}/{preset}-{lag}"
                    results = [train(task, seed, store) for seed in range(1, args.seeds + 1)]
                    for result in results:
                        result["whole_return"] = mean(result["returns_by_stage"])
                    raw[f"{name}, lag {lag}"] = results
                    print(f"{name}, lag {lag}: {spread([result['acted_return'] for result in results])}", flush=True)
    columns = [(name, kind) for name in _ALGORITHMS for kind in _KINDS]
    head = ("lag", *(f"{name}, {kind.removesuffix('_return')}" for name, kind in columns))
    rows = [
        (f"{lag}", *(spread([result[kind] for result in raw[f"{name}, lag {lag}"]]) for name, kind in columns))
        for lag in _LAGS
    ]
    command = f"python -m benchmarks.returns.lag --seeds {args.seeds}"
    print(write_table(args.results, "lag", command, rows, raw, head=head))


if __name__ == "__main__":
    main()
