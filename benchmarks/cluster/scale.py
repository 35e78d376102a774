"""Compares the predictions of `penstock scale` with runs of 1 to 512 light actors, in one table.

The actors' environment waits in every step instead of computing (`waiting_env/`), so hundreds of actors fit on one
machine. They run in a few processes, with a real Dask scheduler and a real Prefect server, on an S3 server in memory
(`object_server.py`). Scheduler messages, store requests and Prefect calls are counted where they arrive, with their
bytes, in all stages except the first and the last.

The servers share the machine with the actors, and nothing else may run on it. Seconds are therefore also predicted for
the processor time that the servers and the flow leave, and the processor time of actors and learner is compared
separately. Constants that depend on the processor's speed are measured first, except Prefect's and those of a stage.

    python -m benchmarks.cluster.scale --rounds 4 --stages 3  # ten minutes
    python -m benchmarks.cluster.scale --actors 1 8 --lag 1
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.cluster.prefect_tally import PrefectTally
from benchmarks.cluster.scale_constants import begin_seconds, commit_seconds, hint_seconds
from benchmarks.peers.measure import machine
from benchmarks.support.cpu_tally import CpuTally
from benchmarks.support.object_server import ObjectServer
from benchmarks.support.programs import BENCHMARKS
from benchmarks.support.tables import this_command, write_table
from penstock.flows.api.prefect_server import PrefectServer
from penstock.flows.support.capacity_table import deployment_of, tried_config, values
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.capacity_model import Prediction, actor_cpu_seconds, learner_cpu_seconds, predict
from penstock.tasks.setup.planning.measured_constants import with_assumptions
from penstock.tasks.setup.planning.operation_counts import (
    StageSeconds,
    prefect_calls,
    scheduler_messages,
    store_requests,
)
from penstock.tasks.setup.planning.run_calibration import measure_parts

if TYPE_CHECKING:
    from penstock.tasks.setup.config.run import TrainConfig
    from penstock.tasks.setup.planning.round_time import PartSeconds
    from penstock.tasks.setup.planning.traffic import Sizes

PENSTOCK = str(Path(sys.executable).parent / "penstock")
TALLY = "PENSTOCK_SCHEDULER_TALLY"
TRIED_TILES = 64
REQUESTS = 100
KINDS = ("get", "put", "list", "head", "delete")
HEAD = ("a stage's", "actors", "predicted", "with times or processors as measured", "measured", "ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--act-workers", type=int, default=16, help="processes that actors share")
    parser.add_argument("--wait-milliseconds", type=float, default=20.0)
    parser.add_argument("--round-steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6, help="of a stage")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--lag", type=int, default=0)
    parser.add_argument("--client", choices=["s3", "s3+obstore", "folder"], default="s3")
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    with_waiting_environment()
    found = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, ObjectServer() as server:
        os.environ |= {"PREFECT_HOME": f"{folder}/prefect", **server.environment}
        with PrefectServer() as prefect:
            prefect.wait_ready()
            sizes, parts, constants = measured_here(args, folder)
            with PrefectTally(int(prefect.ui_url.rpartition(":")[2])) as tally:
                prefect.direct_here()
                os.environ["PREFECT_API_URL"] = tally.api_url
                for actors in args.actors:
                    config = config_of(args, actors, folder)
                    prediction = predict(deployment_of(config, actors, 1, actors), sizes, parts, constants)
                    counted = measure(config, server, tally, folder)
                    found.append({"actors": actors, **compare(prediction, sizes, parts, constants, counted)})
                    print(json.dumps(found[-1]), flush=True)
    report(args, found, {"sizes": sizes.to_json(), "parts": parts.to_json(), "constants": constants})


def measured_here(args: argparse.Namespace, folder: str) -> tuple[Sizes, PartSeconds, dict[str, float]]:
    """Return sizes, part times and constants of this machine, which is one node."""
    sizes, parts = measure_parts(tried_config(config_of(args, 1, folder), TRIED_TILES), None)
    here = {"cores_per_node": parts.cores, **request_seconds(args, folder)}
    for measured in (hint_seconds, commit_seconds, begin_seconds):
        here |= measured()
    return sizes, parts, values(with_assumptions(f"{name}={value}" for name, value in here.items()))


def with_waiting_environment() -> None:
    """Let every started process find `Waiting-v0`."""
    path = [str(BENCHMARKS / "waiting_env"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


def request_seconds(args: argparse.Namespace, folder: str) -> dict[str, float]:
    """Return the latency of writing a small object, and the CPU seconds of this process for it."""
    store, taken = open_store(store_of(args, folder)), []
    began = time.process_time()
    for number in range(REQUESTS):
        started = time.perf_counter()
        store.write(f"latency/{number}", [b"small"])
        taken.append(time.perf_counter() - started)
    busy = (time.process_time() - began) / REQUESTS
    client = "obstore" if args.client == "s3+obstore" else "s3fs"
    return {"request_seconds": median(taken)} | ({} if args.client == "folder" else {f"{client}_request_seconds": busy})


def store_of(args: argparse.Namespace, folder: str) -> str:
    return f"{folder}/runs" if args.client == "folder" else f"{args.client}://bench/runs"


def config_of(args: argparse.Namespace, actors: int, folder: str) -> TrainConfig:
    """Return a configuration with one environment and one tile per actor."""
    return build_config(
        {
            "name": f"actors-{actors}",
            "store": store_of(args, folder),
            "environment": {
                "id": "Waiting-v0",
                "num_envs": actors,
                "envs_per_tile": 1,
                "settings": {"wait_milliseconds": args.wait_milliseconds},
            },
            "algorithm": {"hidden": [16], "epochs": 1, "minibatches": 1},
            "schedule": {
                "round_steps": args.round_steps,
                "rounds_per_stage": args.rounds,
                "max_stages": args.stages,
                "lag": args.lag,
                "evaluation_episodes": 1,
                "evaluate_every_stages": 1_000_000,
            },
            "distribution": {"act_tasks": actors},
            "cluster": {
                "act_workers": min(actors, args.act_workers),
                "gang_seconds": 300.0,
                "cache_folder": f"{folder}/cache",
            },
        }
    )


def measure(config: TrainConfig, server: ObjectServer, tally: PrefectTally, folder: str) -> dict[str, float]:
    """Train as a user does. Return what a stage needed: the mean over stages between the first and the last."""
    preset, told = Path(folder) / f"{config.name}.toml", Path(folder) / f"{config.name}-scheduler.jsonl"
    preset.write_text(toml(config), encoding="utf-8")
    environment = {
        **os.environ,
        TALLY: str(told),
        "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": json.dumps([str(Path(__file__).with_name("scheduler_tally.py"))]),
    }
    server.requests()
    tally.seen.clear()
    command = [PENSTOCK, "train", str(preset), "--json"]
    with CpuTally() as cpu:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr}")
    store = open_store(config.store).at(str(config.name))
    stages = [json.loads(store.read(name)) for name in store.list("timings/")]
    between = stages[1]["started_at"], stages[-1]["started_at"]
    return counts(stages[1:-1], between, config.schedule.rounds_per_stage, cpu, server, [told], tally)


def counts(
    stages: list[dict[str, Any]],
    between: tuple[float, float],
    rounds: int,
    cpu: CpuTally,
    server: ObjectServer,
    told: list[Path],
    tally: PrefectTally,
) -> dict[str, float]:
    """Return what a stage needed, as the mean over stages.

    Args:
        stages: their timings.
        between: Unix times of their beginning and end.
        rounds: of each.
        cpu: has watched all processes.
        server: has answered all requests.
        told: the messages of each scheduler, as `scheduler_tally.py` writes them.
        tally: has passed on the calls to Prefect's server.
    """
    (begin, end), count = between, len(stages)
    counted: Counter[str] = Counter(
        {
            "seconds": end - begin,
            "round seconds": sum(stage["roles_seconds"] for stage in stages) / rounds,
            "snapshot wait": sum(
                part["wait_seconds"] / len(stage["act"]) / rounds for stage in stages for part in stage["act"]
            ),
            "acting": sum(max(part["act_seconds"] for part in stage["act"]) for stage in stages),
            "learning": sum(stage["learn"][0]["learn_seconds"] for stage in stages),
            "members' own": sum(max(part["task_seconds"] for part in stage["act"]) for stage in stages),
            "orchestration": sum(
                stage["stage_seconds"] - max(part["task_seconds"] for part in stage["act"] + stage["learn"])
                for stage in stages
            ),
        }
    )
    pids = {member: facts["pid"] for stage in stages for member, facts in stage["members"].items()}
    acting = {pid for member, pid in pids.items() if member.startswith("act-")}
    for pid, seconds in cpu.seconds(begin, end).items():
        counted["cpu act" if pid in acting else "cpu learn" if pid in pids.values() else "cpu beside"] += seconds
    for at, kind, key, nbytes in server.requests():
        if begin <= at < end:
            counted[kind] += 1
            counted[
                f"{kind} {key.removeprefix('bench/').removeprefix('runs/').partition('/')[2].partition('/')[0]}"
            ] += 1
            counted[f"{kind} bytes"] += nbytes
    for line in itertools.chain.from_iterable(file.read_text(encoding="utf-8").splitlines() for file in told):
        at, kind, operation = json.loads(line)
        if begin <= at < end:
            counted[f"messages {kind}"] += 1
            counted[f"message {kind} {operation}"] += 1
    for at, what in tally.seen:
        if begin <= at < end:
            counted["calls"] += 1
            counted[f"call {what}"] += 1
    return {name: value / count for name, value in counted.items()}


def toml(config: TrainConfig) -> str:
    """Return the configuration's non-default settings as a preset."""
    lines = [f'name = "{config.name}"', f'store = "{config.store}"']
    for section in ("environment", "algorithm", "schedule", "distribution", "cluster"):
        lines.append(f"[{section}]")
        given = getattr(config, section).model_dump(mode="json", exclude_defaults=True)
        for name, value in given.items():
            shown = json.dumps(value)
            if isinstance(value, dict):
                shown = "{" + ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items()) + "}"
            lines.append(f"{name} = {shown}")
    return "\n".join(lines)


def compare(
    prediction: Prediction, sizes: Sizes, parts: PartSeconds, constants: dict[str, float], counted: dict[str, float]
) -> Any:
    """Return three values per figure: predicted; predicted from measured times or remaining processors; measured."""
    d = prediction.deployment
    rows, seconds = d.round_rows * d.rounds_per_stage, counted["seconds"]
    left = constants["cores_per_node"] - counted["cpu beside"] / seconds / d.nodes
    with_left = predict(d, sizes, parts, constants | {"cores_per_node": left})
    asked = store_requests(d, sizes, StageSeconds(seconds, counted["snapshot wait"], counted["round seconds"]))
    messages = sum(counted.get(f"messages {kind}", 0) for kind in ("in", "out", "call"))
    pairs = {
        "env steps/s": (prediction.steps_per_second, with_left.steps_per_second, rows / seconds),
        "seconds": (prediction.stage_seconds, with_left.stage_seconds, seconds),
        "seconds of a round": (prediction.round_seconds, with_left.round_seconds, counted["round seconds"]),
        "processor seconds of actors": (actor_cpu_seconds(d, parts, constants), None, counted["cpu act"]),
        "processor seconds of the learner": (
            learner_cpu_seconds(d, sizes, parts, constants),
            None,
            counted["cpu learn"],
        ),
        "scheduler messages": (prediction.messages, scheduler_messages(d, seconds), messages),
        "Prefect calls": (prediction.calls, prefect_calls(seconds, constants), counted.get("calls", 0)),
        "requests": (
            sum(prediction.requests.values()),
            sum(asked.values()),
            sum(counted.get(kind, 0) for kind in KINDS),
        ),
        **{kind: (prediction.requests[kind], asked[kind], counted.get(kind, 0)) for kind in KINDS},
        "bytes written": (prediction.written_bytes, None, counted.get("put bytes", 0)),
        "bytes read": (prediction.read_bytes, None, counted.get("get bytes", 0)),
    }
    return {"pairs": pairs, "counted": counted, "parts": prediction.parts, "first bottleneck": prediction.bottleneck}


def report(args: argparse.Namespace, found: list[dict[str, Any]], raw: dict[str, Any]) -> None:
    rows = [
        (what, str(run["actors"]), number(mine), number(timed), number(theirs), f"{(timed or mine) / theirs:.2f}")
        for what in found[0]["pairs"]
        for run in found
        for mine, timed, theirs in [run["pairs"][what]]
        if theirs
    ]
    everything = {"runs": found, **raw, "machine": machine(["penstock-rl", "prefect", "distributed", "s3fs"])}
    command = this_command()
    results = args.results or Path(tempfile.mkdtemp())
    print(write_table(results, "scale", command, rows, everything, head=HEAD))


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
