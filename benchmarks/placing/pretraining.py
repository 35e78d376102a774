"""Pretrains a placer on annealed placements of generated blocks, and measures what that gives on other blocks.

    PENSTOCK_TEST_DATA=FOLDER python -m benchmarks.placing.pretraining             # hours; it continues
    python -m benchmarks.placing.pretraining --quick                               # minutes, on generated blocks

Blocks are generated and annealed, with the published moves and with guided ones. `penstock floorplan record` stores
the placements as episodes, and `penstock replay` clones them (behaviour cloning, of each kind of annealing) and learns
from all of them with legalised ones (IQL). The likeliest cells of the policies and of the untrained network's rule are
put on blocks that were learned from. Then, on blocks that were not among them:

- zero-shot: the policies and the rule are sampled for equal CPU seconds, and the best counts;
- as a start: guided annealing, from what a fifth of the time sampled, and from the legalised placement; also at a
  tenth of the first temperature, at which a start is not forgotten;
- fine-tuning: PPO on one generated block, which starts with the policies or afresh.

Every part is kept in `--keep` and never made twice, so the same command continues, and writes the tables again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from benchmarks.peers.measure import machine
from benchmarks.placing.blocks import GENERATED, NAMES, block, legal_start
from benchmarks.placing.layouts import cheaper, put, weighted
from benchmarks.placing.methods import annealed_in_segments
from benchmarks.placing.pretraining_blocks import LEGALISED, pretraining_block
from benchmarks.placing.rule import NOISE, RulePolicy
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command
from penstock.native.floorplan import GUIDED, PlacementCost, create_placement_cost, placing_order
from penstock.tasks.inference.loading import load_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

MEASURED = RESULTS / "2026-11-27-placing-pretraining"
PENSTOCK = str(Path(sys.executable).parent / "penstock")
RULE = "the rule"
LEARNED = {
    "cloned, published moves": ("floorplan-bc", ("published",)),
    "cloned, guided moves": ("floorplan-bc", ("guided",)),
    "IQL, both and legalised": ("floorplan-iql", ("published", "guided", LEGALISED)),
}
"""Presets of replays, and the placements of each block that they learn from."""
PARTS = ("sampled", "annealed", "tuned")
IMITATED = 8
"""Blocks on which replays are evaluated (`evaluation_episodes` of the presets): the first of those learned from."""
NOISES = (NOISE, 0.5)
SAMPLED_SHARE = 0.2  # of the time, before annealing from the best sample
COOL = replace(GUIDED, hot=0.1 * GUIDED.hot)
TUNED, TUNED_ROUNDS, TUNED_ENVS = "generated-1", 60, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150, help="generated blocks; a run has at most 255")
    parser.add_argument("--moves", type=int, default=20_000, help="of each block's annealings")
    parser.add_argument("--blocks", nargs="+", choices=NAMES, default=["ariane133", "generated-2"])
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU seconds of each measurement")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="of replays, samples and fine-tuning")
    parser.add_argument("--keep", type=Path, default=Path("build/placing-pretraining"))
    parser.add_argument("--learned", nargs="+", choices=LEARNED, default=list(LEARNED), help="the policies to learn")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="the measurements to make")
    parser.add_argument("--quick", action="store_true", help="eight blocks, generated ones to judge on, one seed")
    parser.add_argument("--write", action="store_true", help="write the result files too")
    given = parser.parse_args()
    if given.quick:
        given.count, given.moves, given.seconds, given.seeds = 8, 5_000, 3.0, [1]
        given.blocks, given.keep = ["generated-1"], given.keep.with_name(f"{given.keep.name}-quick")
    for name in given.blocks:
        block(name, given.keep / "blocks-to-judge")  # one without files ends the program now, not after hours
    given.keep.mkdir(parents=True, exist_ok=True)
    found = {
        "command": this_command(),
        "machine": machine(["torch", "numpy"]),
        "recorded": list(recorded(given)),
        "replays": list(replayed(given)),
        "imitated": list(imitated(given)),
        "placed": list(placed(given)),
        "tuned": list(tuned(given)) if "tuned" in given.parts else [],
    }
    text = page(found)
    if given.write:
        MEASURED.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        MEASURED.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def recorded(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Make the blocks and record their placements as runs."""
    (given.keep / "blocks").mkdir(exist_ok=True)
    folders = [pretraining_block(given.keep / "blocks", i, given.moves) for i in range(given.count)]
    for policy in given.learned:
        kinds = LEARNED[policy][1]
        name = "-".join(kinds)
        chosen = [part for kind in kinds for part in ("--placement", f"{kind}.plc")]

        def record(name: str = name, chosen: list[str] = chosen) -> dict[str, Any]:
            episodes = penstock(given, "floorplan", "record", name, *map(str, folders), *chosen)
            returns = [one["episode_return"] for one in episodes]
            first = [one["episode_return"] for one in episodes if one["block"] < IMITATED]
            moved = sum(one["moved"] for one in episodes)
            steps = sum(one["macros"] for one in episodes)
            about = {"run": name, "episodes": len(returns), "steps": steps, "moved": moved}
            return {**about, "cost": -fmean(returns), "first_cost": -fmean(first)}

        yield kept(given, f"recorded-{name}", record)


def replayed(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Learn from the recorded runs."""
    for policy in given.learned:
        preset, kinds = LEARNED[policy]
        for seed in given.seeds:
            name = run_of(policy, seed)

            def learn(name: str = name, preset: str = preset, kinds: tuple[str, ...] = kinds, seed: int = seed) -> Any:
                options = ["--from", "-".join(kinds), "--preset", preset, "--seed", str(seed)]
                drive(given, name, ["replay", name, *options])
                stages = stages_of(given, name)
                return {"run": name, "first": stages[0], "last": stages[-1]}

            yield kept(given, f"replayed-{name}", learn)


def imitated(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Put macros on the likeliest cells of the untrained network's rule, on blocks that were learned from."""
    for number in range(min(IMITATED, given.count)):

        def place(number: int = number) -> dict[str, Any]:
            folder = given.keep / "blocks" / f"{number:04}"
            start = create_placement_cost(folder / "netlist.pb.txt", folder / f"{LEGALISED}.plc")
            with RulePolicy(start, 0, noise=0.0) as act:
                cells = act()
            return {
                "block": number,
                "cost": weighted(start if cells is None else put(start, placing_order(start), cells)),
            }

        yield kept(given, f"imitated-{number}", place)


def placed(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Sample the policies, and anneal from what they sampled."""
    for name in given.blocks:
        start = legal_start(name, given.keep / "blocks-to-judge")
        for seed in given.seeds:
            for policy in (RULE, *given.learned) if "sampled" in given.parts else ():
                for noise in NOISES:
                    yield kept(
                        given,
                        f"sampled-{name}-{slug(policy)}-{noise:g}-{seed}",
                        lambda name=name, start=start, policy=policy, noise=noise, seed=seed: {
                            "kind": "sampled",
                            "block": name,
                            "policy": policy,
                            "noise": noise,
                            "seed": seed,
                            **sampled(given, start, policy, noise, given.seconds, seed)[1],
                        },
                    )
            for policy in ("legalised", RULE, *given.learned) if "annealed" in given.parts else ():
                for cool in (False, True):
                    yield kept(
                        given,
                        f"annealed-{name}-{slug(policy)}-{'cool' if cool else 'hot'}-{seed}",
                        lambda name=name, start=start, policy=policy, cool=cool, seed=seed: {
                            "kind": "annealed",
                            "block": name,
                            "policy": policy,
                            "cool": cool,
                            "seed": seed,
                            **from_start(given, start, policy, cool, seed),
                        },
                    )


def sampled(
    given: argparse.Namespace, start: PlacementCost, policy: str, noise: float, seconds: float, seed: int
) -> tuple[PlacementCost, dict[str, Any]]:
    """Sample a policy for some CPU seconds, once at least; return the best placement, and the costs of all.

    A sample that finds no cell for a macro counts as `start`.
    """
    params = parameters(given.keep, policy, seed)  # before the clock runs: it opens all blocks that were learned from
    begun, best, costs, macros = time.process_time(), None, [], placing_order(start)
    with RulePolicy(start, seed, params, noise) as act:
        while not costs or time.process_time() - begun < seconds:
            cells = act()
            plc = start if cells is None else put(start, macros, cells)
            costs.append(weighted(plc))
            best = plc if best is None else cheaper(plc, best)
    spent = time.process_time() - begun
    assert best is not None
    return best, {"cost": min(costs), "mean": fmean(costs), "episodes": len(costs), "cpu_seconds": spent}


def from_start(given: argparse.Namespace, start: PlacementCost, policy: str, cool: bool, seed: int) -> dict[str, Any]:
    """Anneal with guided moves, from a policy's best sample, even if the legalised placement is better, or from that.

    Annealing has what sampling should leave of the time, also where one sample takes longer.
    """
    seconds, spent = given.seconds, 0.0
    if policy != "legalised":
        start, found = sampled(given, start, policy, NOISE, SAMPLED_SHARE * seconds, seed)
        seconds *= 1.0 - SAMPLED_SHARE
        spent = found["cpu_seconds"]
    begun = time.process_time()
    plc = annealed_in_segments(start, seconds, seed, COOL if cool else GUIDED)
    return {"start": weighted(start), "cost": weighted(plc), "cpu_seconds": spent + time.process_time() - begun}


@cache
def parameters(keep: Path, policy: str, seed: int) -> Mapping[str, Tensor] | None:
    """Return a learned policy's parameters; None for the rule."""
    if policy == RULE:
        return None
    loaded = load_policy(run_of(policy, seed), store=str(keep / "runs"))
    return dict(loaded.params["policy"])


def tuned(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train with PPO on one block, from the policies and afresh."""
    netlist, placement = (path.resolve() for path in block(TUNED, given.keep / "blocks-to-judge"))
    macros, stages = GENERATED[TUNED].hard_macros, 2 if given.quick else 6
    options = ["--blocks", f'[{{netlist = "{netlist}", placement = "{placement}"}}]', "--round-steps", str(macros)]
    options += ["--num-envs", str(TUNED_ENVS), "--envs-per-tile", str(TUNED_ENVS), "--max-stages", str(stages)]
    options += ["--rounds-per-stage", str(TUNED_ROUNDS // 6), "--algorithm.anneal-rounds", str(TUNED_ROUNDS)]
    options += ["--algorithm.shared-network", "false"]
    for policy in ("fresh", *given.learned):
        for seed in given.seeds:
            name = f"tuned-{run_of(policy, seed)}"

            def train(name: str = name, policy: str = policy, seed: int = seed) -> dict[str, Any]:
                source = ["--init-from.run", run_of(policy, seed), "--init-from.groups", '["policy"]']
                start = [] if policy == "fresh" else source
                drive(given, name, ["train", "floorplan", "--name", name, "--seed", str(seed), *options, *start])
                (best,) = penstock(given, "floorplan", "best", name, str(given.keep / name))
                stages = stages_of(given, name)
                about = {
                    "policy": policy,
                    "seed": seed,
                    "cost": best["weighted_cost"],
                    "steps": stages[-1]["env steps"],
                }
                return {**about, "first_return": stages[0]["return"], "last_return": stages[-1]["return"]}

            yield kept(given, name, train)


def drive(given: argparse.Namespace, name: str, command: list[str]) -> None:
    """Begin a run, or continue it."""
    exists = (given.keep / "runs" / name / "run.json").exists()
    penstock(given, *(["resume", name] if exists else command))


def stages_of(given: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    return list(penstock(given, "show", name)["stages"])


def penstock(given: argparse.Namespace, *arguments: str) -> Any:
    """Run a command of Penstock and return its JSON."""
    command = [PENSTOCK, *arguments, "--store", str(given.keep / "runs"), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def kept(given: argparse.Namespace, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a part's figures, measured now or by an earlier run of this command."""
    file = given.keep / f"{name}.json"
    if not file.exists():
        print(name, file=sys.stderr, flush=True)
        file.write_text(json.dumps(measure()) + "\n", encoding="utf-8")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def run_of(policy: str, seed: int) -> str:
    return f"{slug(policy)}-{seed}"


def slug(policy: str) -> str:
    return policy.lower().replace(", ", "-").replace(" ", "-")


def page(found: dict[str, Any]) -> str:
    """Return the tables of what was measured."""
    lines = ["# Pretraining a placer on annealed placements of generated blocks", "", f"`{found['command']}`", ""]
    lines += ["Weighted costs, lower is better; each mean is over seeds, with the standard deviation behind it."]
    lines += ["", "## Recorded", ""]
    lines += ["| placements | episodes | steps | macros moved | mean cost in the environment | of the first blocks |"]
    lines += ["|---|---|---|---|---|---|"]
    for one in found["recorded"]:
        about = f"| {one['run']} | {one['episodes']} | {one['steps']:,} | {one['moved']} |"
        lines.append(f"{about} {one['cost']:.4f} | {one['first_cost']:.4f} |")
    lines += ["", f"## Likeliest cells on the first {len(found['imitated'])} of the blocks that were learned from", ""]
    lines += ["| policy | cost | after the first stage | rows learned |", "|---|---|---|---|"]
    lines.append(f"| {RULE} | {fmean(one['cost'] for one in found['imitated']):.4f} | | |")
    for one in found["replays"]:
        first, last = one["first"], one["last"]
        costs = f"{-last['evaluation']:.3f} | {-first['evaluation']:.3f}"
        lines.append(f"| {one['run']} | {costs} | {last['env steps']:,} |")
    placed = found["placed"]
    for name in dict.fromkeys(one["block"] for one in placed):
        lines += placed_tables(name, [one for one in placed if one["block"] == name])
    if found["tuned"]:
        lines += ["", f"## Fine-tuned on {TUNED}", ""]
        lines += ["| start | steps | best cost | first stage's return | last stage's return |", "|---|---|---|---|---|"]
    for policy in dict.fromkeys(one["policy"] for one in found["tuned"]):
        ones = chosen(found["tuned"], policy=policy)
        lines.append(row([policy, f"{ones[0]['steps']:,}"], ones, "cost", "first_return", "last_return"))
    return "\n".join([*lines, ""])


def placed_tables(name: str, placed: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a block's tables."""
    sampled_ones, annealed_ones = chosen(placed, kind="sampled"), chosen(placed, kind="annealed")
    if sampled_ones:
        yield from ("", f"## {name}, sampled", "", "| policy | noise | best | mean | episodes | CPU s |")
        yield "|---|---|---|---|---|---|"
    for policy in dict.fromkeys(one["policy"] for one in sampled_ones):
        for noise in NOISES:
            ones = chosen(sampled_ones, policy=policy, noise=noise)
            yield row([policy, f"{noise:g}"], ones, "cost", "mean", "episodes", "cpu_seconds")
    if annealed_ones:
        yield from ("", f"## {name}, guided annealing from", "")
        yield from ("| start | first temperature | start's cost | cost | CPU s |", "|---|---|---|---|---|")
    for policy in dict.fromkeys(one["policy"] for one in annealed_ones):
        for cool in (False, True):
            ones = chosen(annealed_ones, policy=policy, cool=cool)
            yield row([policy, "a tenth" if cool else "the usual"], ones, "start", "cost", "cpu_seconds")


def chosen(ones: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [one for one in ones if all(one.get(name) == value for name, value in wanted.items())]


def row(first: list[str], ones: list[dict[str, Any]], *names: str) -> str:
    """Return a line of a table: means over seeds."""
    return f"| {' | '.join([*first, *(shown([one[name] for one in ones]) for name in names)])} |"


def shown(values: list[float]) -> str:
    spread = f" ({stdev(values):.4f})" if len(values) > 1 and max(values) < 2 else ""
    return f"{fmean(values):.4f}{spread}" if max(values) < 2 else f"{fmean(values):.1f}"


if __name__ == "__main__":
    main()
