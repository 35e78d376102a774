"""Names the rows of the table of returns: a task, who learns it, for how many steps and with how many seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["penstock", "peer", "baseline"]


@dataclass(frozen=True, slots=True)
class Contender:
    """One system's settings for a row."""

    title: str
    kind: Kind
    command: tuple[str, ...]
    """Of Penstock the preset and its settings; of a peer the names of its virtual environment and script, and its
    options; of a baseline the script's options."""
    steps_per_second: float
    """Expected of one process with a core for itself, for estimates."""

    @property
    def slug(self) -> str:
        """Return the title as a part of file names."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower()).strip("-")


@dataclass(frozen=True, slots=True)
class Row:
    """A task of the table."""

    title: str
    environment: str
    env_steps: int
    seeds: int
    contenders: tuple[Contender, ...]
    goal: str
    """What the row should show, in words."""
    parts: int = 10
    """Stages of Penstock's run, and points of a curve."""

    def steps_of(self, quick: bool) -> int:
        """Return the environment steps of a trial."""
        return self.env_steps // 5 if quick else self.env_steps


RANDOM_RATE = 50_000.0


def _baseline(title: str, *options: str) -> Contender:
    return Contender(title, "baseline", options, RANDOM_RATE)


def _mujoco(environment: str, rate: float, peer_rate: float) -> Row:
    return Row(
        f"PPO on {environment}",
        environment,
        999_424,
        5,
        (
            Contender("Penstock", "penstock", ("halfcheetah", "--environment.id", environment), rate),
            Contender(
                "CleanRL's script",
                "peer",
                ("cleanrl-v5", "cleanrl_learning.py", "--environment", environment),
                peer_rate,
            ),
            _baseline("random actions"),
        ),
        "the interquartile mean of the last tenth at least CleanRL's, and not behind at 200 k steps",
    )


ROWS = {
    "ppo-halfcheetah": _mujoco("HalfCheetah-v5", 10_000, 1_750),
    "ppo-hopper": _mujoco("Hopper-v5", 10_000, 1_750),
    "ppo-walker2d": _mujoco("Walker2d-v5", 10_000, 1_750),
    "ppo-ant": _mujoco("Ant-v5", 6_000, 1_300),
    "mappo-spread": Row(
        "MAPPO and IPPO on simple_spread_v3",
        "simple_spread_v3",
        2_000_000,
        5,
        (
            Contender("MAPPO", "penstock", ("spread-mappo",), 8_000),
            Contender("IPPO", "penstock", ("spread-ippo",), 8_000),
            _baseline("random actions"),
            _baseline("scripted: each agent to its own landmark", "--policy", "scripted"),
        ),
        "at least 70 % of the way from random actions to the scripted policy, each seed over 50 %",
    ),
}


def expected_seconds(row: Row, quick: bool) -> float:
    """Return the estimated CPU seconds of all trials of a row."""
    seeds = 2 if quick else row.seeds
    return sum(
        seeds * row.steps_of(quick) / each.steps_per_second for each in row.contenders if each.kind != "baseline"
    )
