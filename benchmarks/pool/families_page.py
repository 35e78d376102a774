"""Writes the table of families.py from what its trials have kept, and from what adapter_throughput.py has measured."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from importlib.metadata import distributions
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.peers.measure import machine
from benchmarks.support.tables import this_command, write_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.native.registry.families import Family

    Tried = Mapping[str, Mapping[str, Mapping[str, Any]]]
    """What came of each kind of trial, by id."""

TYPICAL = {
    "Penstock": "CartPole-v1",
    "MuJoCo": "InvertedPendulum-v5",
    "Control suite": "dmc/reacher-easy",
    "Atari": "ALE/Pong-v5",
    "MinAtar": "MinAtar/Breakout-v1",
    "MiniGrid": "minigrid/MiniGrid-DoorKey-5x5-v0",
    "EnvPool": "envpool/CartpoleBalance-v1",
    "dm_control": "dm_control/cartpole-balance",
    "PettingZoo": "pettingzoo/mpe/simple_speaker_listener_v4",
    "MJX": "mjx/CartpoleBalance",
    "Warp": "warp/InvertedPendulum-v5",
    "Brax": "brax/inverted_pendulum",
    "Socket": "socket/CartPole-v1",
    "Gymnasium": "FrozenLake-v1",
    "Gymnasium, MuJoCo": "InvertedPendulum-v4",
    "Gymnasium, Box2D": "LunarLander-v3",
    "Gymnasium, ale_py": "ale_py:Pong-v4",
}
"""The id of each family that is killed: its preset's, or one that is quickly stepped."""
HEAD = (
    "family",
    "ids",
    "step as their spaces say",
    "refused by name",
    "trained one stage",
    "restored by",
    "kill test",
    "env steps per CPU second, alone",
    "through Penstock",
    "ratio",
)
REFUSED = "expected a task of one player"
MOST_IDS = 12
"""Ids that a reason lists by name."""
NOTE = """step: a pool of two takes 100 random steps whose observations, rewards and flags match its spaces, of those
that are not refused by name, as EnvPool's tasks of several players are, whose rows it gives in any order. trained one
stage: two rounds by PPO, or IPPO with agents, of ids drawn by a seed. kill test: three stages of one id, killed with
SIGKILL at random moments (the flow, a worker, several or everything, drawn by a seed) and resumed. Every commit, and
the shards, states, snapshots and checkpoint that they name, are compared with an undisturbed run's."""


def write(results: Path, found: Sequence[Family], tried: Tried) -> str:
    """Write the table of what was tried, and the reasons of what failed; return its text.

    Families that are not installed may have ids that were tried elsewhere.
    """
    named = ("penstock-rl", "gymnasium", "envpool", "ale-py", "minigrid", "minatar", "mujoco", "pettingzoo")
    packages = [name for name in named if any(distributions(name=name))]
    measured, source = throughput(results)
    rows = [row(family, tried, measured) for family in found if family.ids or killed(family, tried)]
    names = [name for family in found for name in family.ids]
    rows.append(("all", f"{len(names):,}", *counts(names, tried), "", "", "", "", ""))
    about = {"tried": tried, "throughput": source, "machine": machine(packages)}
    notes = [NOTE]
    if source:
        notes.append(f"Throughput: stepping with random actions, medians of `{source}`.")
    elsewhere = [one.name for one in found if not one.installed and one.ids]
    if elsewhere:
        notes.append(f"Tried in environments of their own: {', '.join(elsewhere)}.")
    missing = [f"{one.name} (`{one.install}`)" for one in found if not one.installed and not one.ids]
    if missing:
        notes.append(f"Not installed here: {', '.join(missing)}.")
    notes += ["What failed:", "\n".join(reasons(tried)) or "nothing."]
    command = this_command()
    return write_table(results, "families", command, rows, about, head=HEAD, notes=notes)


def table(found: Sequence[Family], tried: Tried) -> str:
    """Return what was tried as lines of text, and the reasons of what failed."""
    head = (HEAD[0], *HEAD[2:5])
    lines = [(family.name, *counts(family.ids, tried)) for family in found if family.ids]
    return "\n".join([*(" | ".join(line) for line in (head, *lines)), *reasons(tried)])


def row(family: Family, tried: Tried, measured: Mapping[str, tuple[float, float, float]]) -> tuple[str, ...]:
    """Return the cells of a family."""
    rates: tuple[str, ...] = ("not measured", "", "")
    if family.name in measured:
        alone, ours, ratio = measured[family.name]
        rates = (f"{alone:,.0f}", f"{ours:,.0f}", f"{ratio:.2f}")
    ids = f"{len(family.ids):,}" if family.ids else "any"
    cells = counts(family.ids, tried) if family.ids else ("", "", "")
    return (family.name, ids, *cells, family.restored, killed(family, tried) or "not tried", *rates)


def counts(ids: Iterable[str], tried: Tried) -> tuple[str, str, str]:
    """Return how many step, are refused by name, and train."""
    stepped = [tried["step"][name] for name in ids if name in tried["step"]]
    refused = sum(REFUSED in answer.get("error", "") for answer in stepped)
    trained = [tried["train"][name] for name in ids if name in tried["train"]]
    return (share(stepped, len(stepped) - refused), f"{refused or ''}", share(trained, len(trained)))


def share(answers: Sequence[Mapping[str, Any]], count: int) -> str:
    """Return how many of `count` did not fail."""
    return f"{sum('error' not in answer for answer in answers):,} of {count:,}" if answers else "not tried"


def killed(family: Family, tried: Tried) -> str:
    """Return what came of the id of a family that was killed; nothing if none was."""
    name = TYPICAL.get(family.name, "")
    answer = tried["kill"].get(name)
    if answer is None:
        return ""
    if "error" in answer:
        return f"`{name}`: failed"
    kills = sum(answer["kills"].values())
    return f"`{name}`: {kills} kill{'s' * (kills > 1)}, {answer['files']} files the same"


def reasons(tried: Tried) -> list[str]:
    """Return a line for each reason, with the ids that it was given for."""
    ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for trial, answers in tried.items():
        for name, answer in answers.items():
            if "error" in answer:
                said = re.sub(r"[\w-]+\.(png|npy)\b", r"*.\1", answer["error"].replace(name, "ID"))
                ids[trial, re.sub(r"has \d+ players", "has several players", said)].append(name)
    lines = []
    for (trial, reason), names in sorted(ids.items(), key=lambda item: (item[0][0] != "step", -len(item[1]))):
        listed = ", ".join(f"`{name}`" for name in sorted(names)[:MOST_IDS])
        more = f" and {len(names) - MOST_IDS} more" if len(names) > MOST_IDS else ""
        kind = f"{trial}, refused by name" if REFUSED in reason else trial
        lines.append(f"- {kind}, {len(names)}: {reason}\n  {listed}{more}")
    return lines


def throughput(results: Path) -> tuple[dict[str, tuple[float, float, float]], str]:
    """Return env steps per CPU second alone and through Penstock, and their ratio, by family; and the file's name."""
    files = sorted(results.glob("*-adapter-throughput.json"))
    if not files:
        return {}, ""
    found = {}
    for family, measured in json.loads(files[-1].read_text(encoding="utf-8")).items():
        if stepping := measured.get("stepping"):
            spent = [[side[stepping[key]]["cpu"] for key in ("without", "with")] for side in stepping["taken"]]
            alone, ours = (stepping["env_steps"] / median(seconds) for seconds in zip(*spent, strict=True))
            found[family] = (alone, ours, median(without / with_ for without, with_ in spent))
    return found, files[-1].name
