"""Measures a served policy: latency and throughput of HTTP requests, next to a bare loop over the same network.

The bare loop calls the algorithm's `act` on tensors that are ready, in this process: what no server can be faster than.
`Policy.act` is the loop of a Python user. The server is `penstock serve-policy` as a process of its own; clients are
processes as well, whose connections send the next request when the last one is answered. `GET /health`, which computes
nothing, shows what HTTP alone costs.

    python benchmarks/serving.py --seconds 5
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles

import httpx
import numpy as np
import torch

import penstock

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from measure import machine
from tables import write_table

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-serving-") as folder:
        command = Path(sys.executable).with_name("penstock")
        subprocess.run([command, "train", "cartpole", "--name", "served", "--store", folder], check=True)
        policy = penstock.load_policy("served", store=folder)
        torch.set_num_threads(1)
        server = subprocess.Popen(
            [command, "serve-policy", "served", "--store", folder, "--port", "8951"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert "Ctrl-C" in server.stdout.readline()  # type: ignore[union-attr]
            rows = []
            for name, measure in {
                "bare loop, 1 row": lambda: loop(bare(policy, 1), args.seconds),
                "bare loop, 256 rows": lambda: loop(bare(policy, 256), args.seconds),
                "Policy.act, 1 row": lambda: loop(acting(policy, 1), args.seconds),
                "Policy.act, 256 rows": lambda: loop(acting(policy, 256), args.seconds),
                "HTTP alone (GET /health), 1 client": lambda: clients(1, 0, args.seconds),
                "POST /act, 1 client, 1 row": lambda: clients(1, 1, args.seconds),
                "POST /act, 4 clients, 1 row": lambda: clients(4, 1, args.seconds),
                "POST /act, 16 clients, 1 row": lambda: clients(16, 1, args.seconds),
                "POST /act, 1 client, 256 rows": lambda: clients(1, 256, args.seconds),
            }.items():
                found = [measure() for _ in range(args.rounds)]
                size = 256 if "256" in name else 1
                calls = median(len(each) / args.seconds for each in found)
                middle = median(median(each) for each in found)
                last = median(quantiles(each, n=100)[98] for each in found)
                rows.append((name, f"{middle * 1e3:.3f}", f"{last * 1e3:.3f}", f"{calls * size:,.0f}"))
                print(*rows[-1], sep=" | ", flush=True)
        finally:
            server.terminate()
            server.wait()
    about = machine(("penstock-rl", "torch", "starlette", "uvicorn", "httpx"))
    head = ("what", "median ms", "99th percentile, ms", "rows/s")
    write_table(
        args.results,
        "serving",
        shlex.join(["python", *sys.argv]),
        rows,
        {"machine": about, "rows": rows},
        head=head,
        notes=[f"Machine: {json.dumps(about)}; clients and server share its cores"],
    )


def bare(policy, rows):  # noqa: ANN001, ANN201
    observation = torch.zeros((rows, 4))
    noise = torch.zeros((rows, *policy.algorithm.noise.shape))

    def call() -> None:
        with torch.inference_mode():
            policy.algorithm.act(policy.params, None, observation, noise)

    return call


def acting(policy, rows):  # noqa: ANN001, ANN201
    observation = np.zeros((rows, 4), np.float32)
    return lambda: policy.act(observation)


def loop(call, seconds: float) -> list[float]:  # noqa: ANN001
    for _ in range(100):
        call()
    taken, end = [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        call()
        taken.append(time.perf_counter() - started)
    return taken


def clients(number: int, rows: int, seconds: float) -> list[float]:
    """Return the seconds of all requests that `number` processes made; 0 rows ask for the health."""
    with get_context("spawn").Pool(min(number, 4)) as pool:
        share = number // min(number, 4)
        return list(chain.from_iterable(pool.starmap(client, [(share, rows, seconds)] * min(number, 4))))


def client(connections: int, rows: int, seconds: float) -> list[float]:
    """Keep that many connections busy from one process."""
    import asyncio  # noqa: PLC0415

    body = json.dumps({"observation": np.zeros((rows, 4)).tolist()}) if rows else None

    async def one(session: httpx.AsyncClient) -> list[float]:
        taken, end = [], time.perf_counter() + seconds
        while (started := time.perf_counter()) < end:
            answer = await (session.post("/act", content=body) if body else session.get("/health"))
            answer.raise_for_status()
            taken.append(time.perf_counter() - started)
        return taken

    async def all_of_them() -> list[float]:
        async with httpx.AsyncClient(base_url="http://127.0.0.1:8951", timeout=60) as session:
            return list(chain.from_iterable(await asyncio.gather(*(one(session) for _ in range(connections)))))

    return asyncio.run(all_of_them())


if __name__ == "__main__":
    main()
