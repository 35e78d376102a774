"""Predicts how a placer's training shrinks with 8 to 512 actors, from parts measured here, and compares with real runs.

A trial in another process measures what a step, an inference, a shard's writing and reading, a version's reading and
the learner's update per row take (`penstock scale`). The capacity model makes tables of it: with one learner, with as
many as keep up, and with actors as slow as published ones. Then the script trains with one and two actors, each
for some rounds, and compares the CPU seconds that actors and learner needed, and the rate, with the model's.

    PENSTOCK_ARIANE133=FOLDER python -m benchmarks.placing.scale            # five minutes
    python -m benchmarks.placing.scale --quick                              # the preset's synthetic block

What was measured is kept, so that the same command goes on, and makes new tables of it in a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.measure import machine
from benchmarks.support.cpu_tally import CpuTally
from penstock.flows.support.capacity_limits import enough_learners, limits_of
from penstock.flows.support.capacity_table import deployment_of, tried_config, values
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.config.loading import build_config, load_preset
from penstock.tasks.setup.planning.capacity_model import actor_cpu_seconds, learner_cpu_seconds, predict
from penstock.tasks.setup.planning.measured_constants import constants
from penstock.tasks.setup.planning.round_time import PartSeconds
from penstock.tasks.setup.planning.run_calibration import measure_parts
from penstock.tasks.setup.planning.traffic import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.setup.config.run import TrainConfig
    from penstock.tasks.setup.planning.operation_counts import Deployment

ACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
NODE = 8  # actors
HOURS = 8.6  # published (Menger, 2020), of one machine; 1 h with 512 actors
SLOW_STEPS_PER_SECOND = 0.28  # of a vCPU: 200 x 1,024 episodes of Ariane in 14 h on 1,920 (circuit_training)
FAST = 100  # an assumption: times a learner that is faster than a core here
ENVS = 8
PENSTOCK = str(Path(sys.executable).parent / "penstock")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the synthetic block")
    parser.add_argument("--actors", type=int, nargs="*", default=[1, 2], help="of the real runs")
    parser.add_argument("--rounds", type=int, default=2, help="of a stage of the real runs, which have three stages")
    parser.add_argument("--keep", type=Path, default=Path("build/placing-scale"), help="has what was measured before")
    parser.add_argument("--results", type=Path, help="path without suffix of the .json and .md to be written")
    args = parser.parse_args()
    given = values(constants())
    args.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        config = config_of(args.quick, 1, args.rounds, folder)
        found: dict[str, Any] = kept(args.keep / "trial.json", lambda: tried(config))
        sizes, parts = Sizes(**found["sizes"]), PartSeconds(**found["parts"])
        measured = [
            kept(args.keep / f"{actors}-actors.json", lambda actors=actors: trained(args, actors, folder))
            for actors in args.actors
        ]
        found["runs"] = [compared(config, run, sizes, parts, given) for run in measured]
    found["command"] = "python -m benchmarks.placing.scale" + " --quick" * args.quick
    found["tables"] = tables(config, sizes, parts, given)
    text = page(found, config)
    if args.results:
        args.results.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        args.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def kept(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what an earlier call of this script measured, or measure and keep it."""
    if not path.exists():
        path.write_text(json.dumps(measure()) + "\n", encoding="utf-8")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def tried(config: TrainConfig) -> dict[str, Any]:
    """Return the sizes and seconds of the parts of a round, and the machine."""
    sizes, parts = measure_parts(tried_config(config), None)
    return {"sizes": sizes.to_json(), "parts": parts.to_json(), "machine": machine(["penstock-rl", "torch"])}


def config_of(quick: bool, actors: int, rounds: int, folder: str) -> TrainConfig:
    """Return the preset with one tile an actor, of eight environments that place every macro once a round."""
    preset = load_preset("floorplan")
    blocks: list[dict[str, str]] = []
    steps = preset["schedule"]["round_steps"]
    if not quick:
        if not (folder_of_block := os.environ.get("PENSTOCK_ARIANE133")):
            sys.exit(
                "PENSTOCK_ARIANE133 is not set, expected a folder with netlist.pb.txt.gz and initial.plc; set it, or "
                "take --quick"
            )
        block = Path(folder_of_block)
        blocks = [{"netlist": str(block / "netlist.pb.txt.gz"), "placement": str(block / "initial.plc")}]
        steps = 133
    preset["environment"] |= {"num_envs": ENVS * actors, "envs_per_tile": ENVS}
    if blocks:
        preset["environment"]["blocks"] = blocks
    preset["schedule"] |= {"round_steps": steps, "rounds_per_stage": rounds, "max_stages": 3, "lag": 1}
    preset["schedule"] |= {"evaluation_episodes": 1, "evaluate_every_stages": 1_000_000}
    preset["distribution"] |= {"act_tasks": actors}
    preset["cluster"] = {"cache_folder": f"{folder}/cache", "act_workers": actors, "gang_seconds": 300.0}
    return build_config(preset | {"name": f"actors-{actors}", "store": f"{folder}/runs"})


def trained(args: argparse.Namespace, actors: int, folder: str) -> dict[str, Any]:
    """Train as a user does, and return what the stage between the first and the last needed."""
    config = config_of(args.quick, actors, args.rounds, folder)
    preset = Path(folder) / f"{config.name}.toml"
    preset.write_text(toml(config), encoding="utf-8")
    with CpuTally() as cpu:
        done = subprocess.run([PENSTOCK, "train", str(preset), "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the run with {actors} actors ended with {done.returncode}:\n{done.stderr}")
    store = open_store(config.store).at(str(config.name))
    first, stage, last = (json.loads(store.read(name)) for name in store.list("timings/"))
    begin, end = stage["started_at"], last["started_at"]
    pids = {member: facts["pid"] for one in (first, stage, last) for member, facts in one["members"].items()}
    acting = {pid for member, pid in pids.items() if member.startswith("act-")}
    spent = {"act": 0.0, "learn": 0.0, "beside": 0.0}
    for pid, seconds in cpu.seconds(begin, end).items():
        spent["act" if pid in acting else "learn" if pid in pids.values() else "beside"] += seconds
    found = {"actors": actors, "rounds": args.rounds, "seconds": end - begin, "cpu_seconds": spent, "timings": stage}
    print(json.dumps({name: value for name, value in found.items() if name != "timings"}), flush=True)
    return found


def compared(
    config: TrainConfig, run: dict[str, Any], sizes: Sizes, parts: PartSeconds, given: dict[str, float]
) -> dict[str, Any]:
    """Return a run's figures next to the model's, of a stage on this machine."""
    deployment = replace(deployment_of(config, run["actors"], 1, NODE), rounds_per_stage=run["rounds"])
    here = given | {"cores_per_node": float(parts.cores)}
    rows = deployment.round_rows * deployment.rounds_per_stage
    predicted = {
        "actors' CPU s": actor_cpu_seconds(deployment, parts, here),
        "learner's CPU s": learner_cpu_seconds(deployment, sizes, parts, here),
        "env steps/s": predict(deployment, sizes, parts, here).steps_per_second,
    }
    measured = {
        "actors' CPU s": run["cpu_seconds"]["act"],
        "learner's CPU s": run["cpu_seconds"]["learn"],
        "env steps/s": rows / run["seconds"],
    }
    return {"actors": run["actors"], "steps": rows, "predicted": predicted, "measured": measured}


def toml(config: TrainConfig) -> str:
    """Return the configuration's non-default settings as a preset."""
    lines = [f'name = "{config.name}"', f'store = "{config.store}"']
    for section in ("environment", "algorithm", "schedule", "distribution", "cluster"):
        lines.append(f"[{section}]")
        for name, value in getattr(config, section).model_dump(mode="json", exclude_defaults=True).items():
            lines.append(f"{name} = {as_toml(value)}")
    return "\n".join(lines)


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_toml(item) for item in value) + "]"
    return json.dumps(value)


def tables(config: TrainConfig, sizes: Sizes, parts: PartSeconds, given: dict[str, float]) -> dict[str, Any]:
    """Return rates by number of actors, for one learner, for enough, and for actors as slow as published ones."""
    alone = config.cluster.model_copy(update={"act_workers": None})  # a process for each actor
    cloud = config.model_copy(update={"store": "s3+obstore://bucket/runs", "cluster": alone})
    cloud = cloud.model_copy(update={"schedule": cloud.schedule.model_copy(update={"rounds_per_stage": 50})})
    slow = replace(parts, step=ENVS / SLOW_STEPS_PER_SECOND - parts.infer)
    slow = replace(slow, step_cpu=slow.step)
    fast = replace(parts, update=parts.update / FAST, update_row=parts.update_row / FAST, take=parts.take / FAST)
    return {
        "one learner": table(cloud, sizes, parts, given, enough=False),
        "as many learners as keep up": table(cloud, sizes, parts, given, enough=True),
        f"one learner, {FAST} times as fast": table(cloud, sizes, fast, given, enough=False),
        "one learner, published actors": table(cloud, sizes, slow, given, enough=False),
    }


def table(
    config: TrainConfig, sizes: Sizes, parts: PartSeconds, given: dict[str, float], *, enough: bool
) -> dict[str, Any]:
    def deployment(actors: int) -> Deployment:
        alone = deployment_of(config, actors, 1, NODE)
        if not enough or actors <= NODE:  # one machine has one learner
            return alone
        return replace(alone, learners=enough_learners(with_learners(alone), sizes, parts, given))

    predictions = [predict(deployment(actors), sizes, parts, given) for actors in ACTORS]
    base = next(one for one in predictions if one.deployment.actors == NODE).steps_per_second
    rows = [
        {
            "actors": one.deployment.actors,
            "learners": one.deployment.learners,
            "env steps/s": one.steps_per_second,
            "hours": HOURS * base / one.steps_per_second,
            "first bottleneck": one.bottleneck,
            "requests/s": one.per_second(sum(one.requests.values())),
            "store MB/s": one.per_second(one.written_bytes + one.read_bytes) / 1e6,
        }
        for one in predictions
    ]
    limits = limits_of(deployment, sizes, parts, given)
    return {
        "rows": rows,
        "limits": {
            name: limit and {"actors": limit.actors, "env steps/s": limit.steps_per_second}
            for name, limit in limits.items()
        },
    }


def short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def duration(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 0.5 else f"{60 * hours:.1f} min"


def with_learners(deployment: Deployment) -> Callable[[int], Deployment]:
    return lambda learners: replace(deployment, learners=learners)


def page(found: dict[str, Any], config: TrainConfig) -> str:
    parts, sizes = found["parts"], found["sizes"]
    rows = config.environment.envs_per_tile * config.schedule.round_steps
    lines = [
        "# A placer's training with 1 to 512 actors: predicted from measured parts",
        "",
        f"`{found['command']}`, {found['machine']['cores']} cores of {found['machine']['processor']}",
        "",
        f"Preset `floorplan`, lag 1: an actor has {ENVS} environments, a round {config.schedule.round_steps} steps.",
        "Measured:",
        "",
        "| part | ms |",
        "|---|---|",
        f"| a step of {ENVS} environments | {1e3 * parts['step']:.2f} |",
        f"| its inference | {1e3 * parts['infer']:.2f} |",
        f"| a shard's writing ({rows} rows, {sizes['shard_bytes'] / 1e3:.0f} kB) | {1e3 * parts['write']:.2f} |",
        f"| a version's reading ({sizes['snapshot_bytes'] / 1e3:.0f} kB) | {1e3 * parts['fetch']:.2f} |",
        f"| the learner's reading of a shard, and what it computes of it | {1e3 * parts['take']:.0f} |",
        f"| the learner's update, per row of a round | {1e3 * parts['update_row']:.3f} |",
        f"| the same, per round | {1e3 * parts['update']:.1f} |",
        f"| a sum between two learners | {1e3 * parts['collective']:.2f} |",
        "",
        "Assumed: nodes of 8 cores, 10 Gbit/s each, a store of 100 Gbit/s, 20 ms a request, 5,500 reads and 3,500",
        "writes a second. The client's CPU seconds a request, Dask's and Prefect's were measured before",
        "(`penstock scale --explain`).",
        "",
        "## Real runs and the model: a stage",
        "",
        "| actors | | predicted | measured | ratio |",
        "|---|---|---|---|---|",
    ]
    for run in found["runs"]:
        for name, mine in run["predicted"].items():
            theirs = run["measured"][name]
            lines.append(f"| {run['actors']} | {name} | {mine:.3g} | {theirs:.3g} | {mine / theirs:.2f} |")
    for name, one in found["tables"].items():
        lines += ["", f"## {name.capitalize()}", ""]
        lines += ["| actors | learners | env steps/s | 8.6 h of 8 actors become | first bottleneck |"]
        lines[-1] += " requests/s | store MB/s |"
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| {row['actors']} | {row['learners']} | {short(row['env steps/s'])} | {duration(row['hours'])} | "
            f"{row['first bottleneck']} | {row['requests/s']:,.0f} | {row['store MB/s']:,.1f} |"
            for row in one["rows"]
        ]
        lines += [
            "",
            "Actors that saturate a part, were all others fast, and the env steps/s of which it is capable:",
            "",
        ]
        lines += [
            f"- {name}: " + (f"{limit['actors']:,}; {short(limit['env steps/s'])}" if limit else "not a million")
            for name, limit in one["limits"].items()
        ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
