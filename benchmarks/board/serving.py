"""Measures a served policy: latency and throughput of HTTP requests, next to a bare loop and to Ray Serve.

The bare loop calls the algorithm's `act` on tensors that are ready, in this process: what no server can be faster than.
`Policy.act` is the loop of a Python user. Servers are processes of their own, started anew in each round, one after the
other and in another order each time: `penstock serve-policy`, and `peers/ray_serve_policy.py` with the same policy, in
its own environment under `.venv-peers/`. Each has one torch thread, and by default answers requests that wait together
in one batch. Clients are processes as well, whose connections send the next request when the last one is answered.
`GET /health`, which computes nothing, shows what HTTP alone costs.

    python -m benchmarks.board.serving --seconds 5
    python -m benchmarks.board.serving --servers penstock ray-direct-plain --name serving-plain
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from benchmarks.peers.measure import machine, tree_pss_bytes
from benchmarks.support.programs import PEERS, RESULTS, peer_python, ratio
from benchmarks.support.tables import this_command, write_table

# Not torch or penstock: every process of clients imports this module.

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

SERVERS = {
    "penstock": ("Penstock", []),
    "ray": ("Ray Serve, equal settings", []),
    "ray-plain": ("Ray Serve, no batches", ["--mode", "plain"]),
    "ray-waiting": ("Ray Serve, batches wait 2 ms", ["--wait-seconds", "0.002"]),
    "ray-haproxy": ("Ray Serve, HAProxy", ["--ingress", "haproxy"]),
    "ray-haproxy-plain": ("Ray Serve, HAProxy, no batches", ["--ingress", "haproxy", "--mode", "plain"]),
    "ray-haproxy-2": ("Ray Serve, HAProxy, two replicas", ["--ingress", "haproxy", "--replicas", "2"]),
    "ray-direct": ("Ray Serve, direct", ["--ingress", "direct"]),
    "ray-direct-plain": ("Ray Serve, direct, no batches", ["--ingress", "direct", "--mode", "plain"]),
}
"""Titles, and arguments of `peers/ray_serve_policy.py`."""
LOADS = {
    "GET /health, 1 client": (1, 0),
    "POST /act, 1 client, 1 row": (1, 1),
    "POST /act, 4 clients, 1 row": (4, 1),
    "POST /act, 16 clients, 1 row": (16, 1),
    "POST /act, 1 client, 256 rows": (1, 256),
}
"""Number of clients and rows of each request; 0 rows ask for the health."""

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--servers", nargs="+", choices=list(SERVERS), default=["penstock", "ray", "ray-haproxy", "ray-direct"]
    )
    parser.add_argument("--name", default="serving", help="of the results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    ray = peer_python("ray-serve")
    rounds: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="penstock-serving-") as folder:
        penstock = [str(Path(sys.executable).with_name("penstock"))]
        program = str(Path(folder) / "policy.pt2")
        subprocess.run([*penstock, "train", "cartpole", "--name", "served", "--store", folder], check=True)
        subprocess.run([*penstock, "export", "served", program, "--to", "torch", "--store", folder], check=True)
        observations = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
        expected, loops = in_this_process(folder, observations)
        commands = {
            name: [str(ray), str(PEERS / "ray_serve_policy.py"), program, *SERVERS[name][1]] for name in args.servers
        }
        commands["penstock"] = [*penstock, "serve-policy", "served", "--store", folder]
        for number in range(args.rounds):
            found: Figures = {"loops": {name: summary(loop(call, args.seconds)) for name, call in loops.items()}}
            start = number % len(args.servers)
            for name in [*args.servers[start:], *args.servers[:start]]:
                with serving(commands[name]) as (pid, url):
                    check(url, observations, expected)
                    clients(url, 4, 1, 2.0)  # until everything is loaded
                    found[name] = {title: summary(clients(url, *load, args.seconds)) for title, load in LOADS.items()}
                    found[name]["bytes"] = tree_pss_bytes(pid)
                print(number, name, json.dumps(found[name]), flush=True)
            rounds.append(found)
    write(args, rounds, ray)


def in_this_process(folder: str, observations: NDArray[Any]) -> tuple[list[int], dict[str, Callable[[], object]]]:
    """Return the policy's actions for the observations, and what to call in a loop."""
    import torch  # noqa: PLC0415

    import penstock  # noqa: PLC0415

    policy = penstock.load_policy("served", store=folder)
    torch.set_num_threads(1)
    loops: dict[str, Callable[[], object]] = {}
    for count, title in ((1, "1 row"), (256, "256 rows")):
        loops[f"bare loop, {title}"] = bare(policy, count)
        loops[f"Policy.act, {title}"] = partial(policy.act, np.zeros((count, 4), np.float32))
    return policy.act(observations).tolist(), loops


def bare(policy: Any, rows: int) -> Callable[[], None]:
    import torch  # noqa: PLC0415

    observation = torch.zeros((rows, 4))
    noise = torch.zeros((rows, *policy.algorithm.noise.shape))

    def call() -> None:
        with torch.inference_mode():
            policy.algorithm.act(policy.params, None, observation, noise)

    return call


def loop(call: Callable[[], object], seconds: float) -> list[float]:
    for _ in range(100):
        call()
    taken, end = [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        call()
        taken.append(time.perf_counter() - started)
    return [*taken, seconds]


@contextlib.contextmanager
def serving(command: list[str]) -> Iterator[tuple[int, str]]:
    """Start a server; yield its process id and address. Each has a port of its own: closed connections keep the old."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            assert f":{port}" in said, f"{shlex.join(command)} has not started: {said}"
            yield server.pid, f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def check(url: str, observations: NDArray[Any], expected: list[int]) -> None:
    """Check that the server has the policy whose actions are expected."""
    answer = httpx.post(f"{url}/act", json={"observation": observations.tolist()}, timeout=60)
    assert answer.json()["action"] == expected, answer.text


def clients(url: str, number: int, rows: int, seconds: float) -> list[float]:
    """Return the seconds of all requests that `number` clients made, and `seconds`; 0 rows ask for the health."""
    processes = min(number, 4)
    context = get_context("spawn")
    together = context.Barrier(processes)
    with context.Pool(processes, _keep, [together]) as pool:
        arguments = [(url, number // processes, rows, seconds)] * processes
        return [*chain.from_iterable(pool.starmap(client, arguments, chunksize=1)), seconds]


def _keep(barrier: Any) -> None:
    global together  # noqa: PLW0603  (a barrier can only be inherited)
    together = barrier


def client(url: str, connections: int, rows: int, seconds: float) -> list[float]:
    """Keep that many connections busy from one process, once all processes are there."""
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
        async with httpx.AsyncClient(base_url=url, timeout=60) as session:
            return list(chain.from_iterable(await asyncio.gather(*(one(session) for _ in range(connections)))))

    together.wait()
    return asyncio.run(all_of_them())


def summary(taken: list[float]) -> Figures:
    """Summarise calls; the last number is the seconds of all."""
    *taken, seconds = taken
    return {
        "median_ms": round(median(taken) * 1e3, 4),
        "last_percentile_ms": round(quantiles(taken, n=100)[98] * 1e3, 4),
        "calls_per_second": round(len(taken) / seconds, 1),
    }


def write(args: argparse.Namespace, rounds: list[Figures], ray: Path) -> None:
    rows: list[tuple[str, str, str, str]] = []

    def add(title: str, name: str, key: str, size: int, compared: bool) -> None:
        found = [each[name][key] for each in rounds]
        middle, last, calls = (median(each[figure] for each in found) for figure in found[0])
        faster = (
            [each["penstock"][key]["calls_per_second"] / each[name][key]["calls_per_second"] for each in rounds]
            if compared
            else []
        )
        rate = f"{calls * size:,.0f}"
        rows.append((f"{title}{key}", f"{middle:.3f} ({last:.3f})", rate, ratio(faster) if faster else ""))

    for key in rounds[0]["loops"]:
        add("", "loops", key, 256 if "256" in key else 1, compared=False)
    for key, (_, size) in LOADS.items():
        for name in args.servers:
            is_peer = name != "penstock" and "penstock" in args.servers
            add(f"{SERVERS[name][0]}: ", name, key, max(size, 1), compared=is_peer)
    memory = "; ".join(
        f"{SERVERS[name][0]} {median(each[name]['bytes'] for each in rounds) / 1e6:,.0f}" for name in args.servers
    )
    versions = subprocess.run([ray, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout.split()
    theirs = [
        each
        for each in versions
        if each.split("==")[0] in ("ray", "torch", "starlette", "uvicorn", "httptools", "uvloop")
    ]
    about = machine(("penstock-rl", "torch", "starlette", "uvicorn", "httpx"))
    write_table(
        args.results,
        args.name,
        this_command(),
        rows,
        {"machine": about, "ray": theirs, "rounds": rounds},
        head=("what", "median ms (99th percentile)", "rows/s", "Penstock's rows/s over it (range of rounds)"),
        notes=[
            f"Memory of all processes of a server (PSS), MB: {memory}.",
            f"Clients and server share the cores of this machine: {json.dumps(about)}.",
            f"Ray Serve's environment: {', '.join(theirs)}.",
        ],
    )


if __name__ == "__main__":
    main()
