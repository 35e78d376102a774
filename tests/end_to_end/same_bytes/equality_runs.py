"""Small runs of every algorithm under every policy, and functions that read what tests compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.storage.shards.codec import decode_shard
from penstock.storage.tensors import load_tensors

from ..conftest import Settings

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...support.processes.commands import Command
    from ...support.stored.stored_run import StoredRun
    from ..conftest import Bench

TOLERANCE = 1e-5
ALONE = "single_learner_coarse"
POLICIES = {
    ALONE: ("--act-tasks", "2"),
    "single_learner_fine": ("--env-tasks", "2"),
    "multiple_learners": ("--learn-tasks", "2"),
    "gpu_only": ("--learn-tasks", "2"),
    "environments": ("--env-tasks", "2", "--learn-tasks", "2"),
    "central": ("--learn-tasks", "2"),
    "agents": ("--act-tasks", "2", "--learn-tasks", "2"),
}
ANY = tuple(policy for policy in POLICIES if policy != "agents")
"""The policies that can run any algorithm."""
APART = "mappo-apart"
"""MAPPO with parameters of each agent, so that learners can own agents."""
BOARD = "dqn-board"
"""DQN with convolutions over a board of bytes, of which some moves are forbidden."""
MEMORY = "dqn-memory"
"""DQN with a memory, R2D2."""
MEMORIES = "sac-memories"
"""SAC whose actor and critics have a memory each."""
DELAYED_MEMORIES = "td3-memories"
"""TD3 with the same memories: its actor is deterministic, and waits with all targets for every other minibatch."""

_SMALL = "hidden = [8]\nminibatches = 2"
_OFF_POLICY = f"{_SMALL}\nwindow_rows = 300\nwarm_up_rows = 150\nminibatch_rows = 16"
ALGORITHMS = {
    # Normalisers, so that learners also share what is kept from round to round.
    "ppo": f"CartPole-v1 {_SMALL}\nepochs = 1\nnormalize_observation = true\nnormalize_reward = true",
    # Sums of minibatches, sums that run on over rounds, rounds that end early, and a bonus that changes with rounds.
    "ppo-options": f"Pendulum-v1 {_SMALL}\nepochs = 3\nlearning_rate = 1e-2\nreward_scale = 0.02\n"
    'normalize_reward = true\nactions = "clipped"\nreward_normalization = "running"\n'
    'advantage_normalization = "minibatch"\n'
    "value_clip_range = 0.2\njoint_gradient_norm = true\ntarget_kl = 0.005\n"
    "entropy_weight = 0.02\nfinal_entropy_weight = 0.001\nanneal_rounds = 9\nfinal_learning_rate = 1e-2",
    "impala": f"CartPole-v1 {_SMALL}\nentropy_weight = 0.02\nfinal_entropy_weight = 0.0\nanneal_rounds = 9\n"
    "final_learning_rate = 1e-3",
    "mappo": f"simple_spread_v3 {_SMALL}\nepochs = 1\nnormalize_reward = true\nnormalize_value = true\n"
    "huber_delta = 1.0\nvalue_clip_range = 0.2",
    "ippo": f"simple_spread_v3 {_SMALL}\nepochs = 1\nnetwork = 'recurrent'\nfeatures = 8\nsequence_steps = 4\n"
    "entropy_weight = 0.02\nfinal_entropy_weight = 0.001\nanneal_rounds = 9\nfinal_learning_rate = 5e-4",
    APART: f"simple_spread_v3 {_SMALL}\nepochs = 1\nshared_parameters = false\nnormalize_observation = true\n"
    "normalize_reward = true\nnormalize_value = true\nvalue_decay = 0.9",
    "dqn": f"CartPole-v1 {_OFF_POLICY}\npriority_exponent = 0.6\nreturn_steps = 3\ntarget_minibatches = 5\n"
    "epsilon_minibatches = 20",
    # Sequences that begin with stored memories, of which some have a burn-in.
    MEMORY: f"CartPole-v1 {_OFF_POLICY}\npriority_exponent = 0.6\nreturn_steps = 2\ntarget_minibatches = 5\n"
    "epsilon_minibatches = 20\nnetwork = 'recurrent'\nfeatures = 8\nsequence_steps = 4\nburn_in_steps = 2\n"
    "value_rescaling = true",
    BOARD: f"ConnectFour-v0 {_OFF_POLICY}\nnetwork = 'small'\nfeatures = 8\nreturn_steps = 2\ntarget_minibatches = 5\n"
    "epsilon_minibatches = 20",
    "sac": f"Pendulum-v1 {_OFF_POLICY}\nnormalize_observation = true",
    # Sequences as DQN's, with noise for each of their steps, and a normaliser that counts each step once.
    MEMORIES: f"Pendulum-v1 {_OFF_POLICY}\nnormalize_observation = true\nrandom_steps = 200\nnetwork = 'recurrent'\n"
    "features = 8\nsequence_steps = 4\nburn_in_steps = 2",
    # Noisy weights, whose noise is drawn by actors and losses alike.
    "qr_dqn": f"CartPole-v1 {_OFF_POLICY}\npriority_exponent = 0.6\ncorrection_minibatches = 10\nreturn_steps = 3\n"
    "returns_across_rounds = true\ntarget_minibatches = 5\nquantiles = 4\nnoisy_scale = 0.5",
    # Random actions until the first stage's third round has ended.
    "td3": f"Pendulum-v1 {_OFF_POLICY}\nnormalize_observation = true\nrandom_steps = 200",
    DELAYED_MEMORIES: f"Pendulum-v1 {_OFF_POLICY}\nrandom_steps = 200\nnetwork = 'recurrent'\nfeatures = 8\n"
    "sequence_steps = 4\nburn_in_steps = 2",
}


@dataclass(frozen=True)
class Small(Settings):
    """Settings with three tiles, so that two learners have unequal parts; windows hold three of the twelve rounds."""

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
        name = self.algorithm.partition("-")[0]
        return f'{before}\nid = "{environment}"\n[algorithm]\nname = "{name}"\n{settings}\n{schedule}'


@dataclass
class PolicyRuns:
    """Undisturbed runs, each made when a test first asks for it."""

    bench: Bench
    made: dict[tuple[str, str], StoredRun] = field(default_factory=dict)

    def get(self, algorithm: str, policy: str) -> StoredRun:
        """Return one run on the shared cluster; that of PPO under `central` is on workers of its own."""
        self._make(algorithm, [policy])
        return self.made[algorithm, policy]

    def get_all(self, algorithm: str, policies: Collection[str]) -> dict[str, StoredRun]:
        """Return an algorithm's runs by policy; those that are missing are made, two at once."""
        self._make(algorithm, policies)
        return {policy: self.made[algorithm, policy] for policy in policies}

    def _make(self, algorithm: str, policies: Collection[str]) -> None:
        missing = {each: f"{algorithm}-{each.replace('_', '-')}" for each in policies}
        missing = {each: name for each, name in missing.items() if (algorithm, each) not in self.made}
        waiting = list(missing.items())
        while waiting:
            # More at once cost more than they save, and a busy Prefect server refuses some.
            flows = [
                start(self.bench, name, algorithm, each, alone=(algorithm, each) == ("ppo", "central"))
                for each, name in waiting[:2]
            ]
            del waiting[:2]
            for flow in flows:
                flow.succeed()
        self.made |= {(algorithm, each): self.bench.run(name) for each, name in missing.items()}


def start(
    bench: Bench, name: str, algorithm: str, policy: str, *, lag: int = 0, stages: int = 2, alone: bool = False
) -> Command:
    """Start `penstock train` with a small run under that policy."""
    train = bench.train_alone if alone else bench.train
    settings = Small(algorithm=algorithm, lag=lag, stages=stages)
    return train(name, settings, "--policy", policy, *POLICIES[policy])


def policies_of(algorithm: str) -> tuple[str, ...]:
    if algorithm == APART:
        return (ALONE, "multiple_learners", "agents")
    # What is distributed of memories is SAC's in all other policies, too.
    return (ALONE, "multiple_learners") if algorithm == DELAYED_MEMORIES else ANY


def assert_near(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], what: str) -> None:
    """Check that names, choices and flags are equal, and numbers within the tolerance."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        tolerance = TOLERANCE if value.dtype.kind == "f" else 0
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=f"{what} {name}")


def parameters(run: StoredRun, stage: int) -> dict[str, np.ndarray]:
    """Return the learned parameters of a stage's checkpoint."""
    ref = run.commits()[stage]["checkpoint"]
    tensors, _ = load_tensors(run.store.view(ref["name"]), ref["name"], ref["digest"])
    return {name: np.asarray(value) for name, value in tensors.items() if name.startswith(("params/", "targets/"))}


def columns(run: StoredRun) -> dict[tuple[int, int], dict[str, np.ndarray]]:
    """Return the columns of every committed shard, by round and tile."""
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
    """Return the digests of the algorithm's source that the members ran."""
    return {member["source"] for timings in run.timings() for member in timings["members"].values()}
