"""Runs of every algorithm under every policy, so small that all can be had, and what is compared of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from storage.shards import decode_shard
from storage.tensors import load_tensors

from .conftest import Settings

if TYPE_CHECKING:
    from .conftest import Bench
    from .processes import Command
    from .stored import StoredRun

ALONE = "single_learner_coarse"
POLICIES = {
    ALONE: ("--act-tasks", "2"),
    "single_learner_fine": ("--env-tasks", "2"),
    "multiple_learners": ("--learn-tasks", "2"),
    "gpu_only": ("--learn-tasks", "2"),
    "environments": ("--env-tasks", "2", "--learn-tasks", "2"),
    "central": ("--learn-tasks", "2"),
}
NATIVE = tuple(policy for policy in POLICIES if policy != "gpu_only")
"""What can be had with an environment that torch can't step."""

_SMALL = "hidden = [8]\nminibatches = 2"
_OFF_POLICY = f"{_SMALL}\nwindow_rows = 300\nwarm_up_rows = 150\nminibatch_rows = 16"
ALGORITHMS = {
    # Normalisers, so that learners also share what is kept from round to round.
    "ppo": f"CartPole-v1 {_SMALL}\nepochs = 1\nnormalize_observation = true\nnormalize_reward = true",
    "impala": f"CartPole-v1 {_SMALL}",
    "mappo": f"simple_spread_v3 {_SMALL}\nepochs = 1\nnormalize_reward = true",
    "ippo": f"simple_spread_v3 {_SMALL}\nepochs = 1",
    "dqn": f"CartPole-v1 {_OFF_POLICY}\npriority_exponent = 0.6\nreturn_steps = 3\ntarget_minibatches = 5\n"
    "epsilon_minibatches = 20",
    "sac": f"Pendulum-v1 {_OFF_POLICY}\nnormalize_observation = true",
}


@dataclass(frozen=True)
class Small(Settings):
    """Three tiles, so that two learners have unlike parts; windows hold three of the twelve rounds."""

    algorithm: str = "ppo"
    stages: int = 2
    rounds: int = 6
    tiles: int = 3
    act_tasks: int = 1
    round_steps: int = 8

    def toml(self) -> str:
        before, _, rest = super().toml().partition("[algorithm]")
        environment, _, settings = ALGORITHMS[self.algorithm].partition(" ")
        schedule = rest[rest.index("[schedule]") :].replace("evaluation_episodes = 4", "evaluation_episodes = 1")
        return f'{before}\nid = "{environment}"\n[algorithm]\nname = "{self.algorithm}"\n{settings}\n{schedule}'


@dataclass
class Runs:
    """Runs that nothing disturbed, made when they are first asked for: those of an algorithm side by side."""

    bench: Bench
    made: dict[tuple[str, str], StoredRun] = field(default_factory=dict)

    def start(self, name: str, algorithm: str, policy: str, *, lag: int = 0, alone: bool = False) -> Command:
        train = self.bench.train_alone if alone else self.bench.train
        return train(name, Small(algorithm=algorithm, lag=lag), "--policy", policy, *POLICIES[policy])

    def of(self, algorithm: str, policy: str) -> StoredRun:
        """On the shared cluster; that of PPO under `central` on workers that it brings along."""
        if (algorithm, policy) not in self.made:
            named = {each: f"{algorithm}-{each.replace('_', '-')}" for each in policies_of(algorithm)}
            flows = [
                self.start(name, algorithm, each, alone=(algorithm, each) == ("ppo", "central"))
                for each, name in named.items()
            ]
            for flow in flows:
                flow.succeed()
            self.made |= {(algorithm, each): self.bench.run(name) for each, name in named.items()}
        return self.made[algorithm, policy]


def policies_of(algorithm: str) -> tuple[str, ...]:
    return NATIVE if ALGORITHMS[algorithm].startswith("simple_spread") else tuple(POLICIES)


def parameters(run: StoredRun, stage: int) -> dict[str, np.ndarray]:
    """All of the checkpoint that is learned."""
    ref = run.commits()[stage]["checkpoint"]
    tensors, _ = load_tensors(run.store.view(ref["name"]), ref["name"], ref["digest"])
    return {name: np.asarray(value) for name, value in tensors.items() if name.startswith(("params/", "targets/"))}


def columns(run: StoredRun) -> dict[tuple[int, int], dict[str, np.ndarray]]:
    """Of every committed shard, by round and tile."""
    refs = [ref for commit in run.commits() for ref in commit["shards"]]
    return {
        (ref["round"], ref["tile"]): {
            name: np.array(value)
            for name, value in decode_shard(
                run.store.view(ref["name"]), None, ref["name"], ref["digest"]
            ).columns.items()
        }
        for ref in refs
    }


def sources(run: StoredRun) -> set[str]:
    """Digests of the text that members played the algorithm from."""
    return {member["source"] for timings in run.timings() for member in timings["members"].values()}
