"""Names the rows of the table of returns: a task, who learns it, for how many steps and with how many seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["penstock", "replay", "self-play", "peer", "baseline"]


@dataclass(frozen=True, slots=True)
class Contender:
    """One system's settings for a row."""

    title: str
    kind: Kind
    command: tuple[str, ...]
    """Of Penstock the preset and its settings, or the preset of a replay; of self-play the program that measures its
    run, the preset and its settings; of a peer its virtual environment and script with their names, and its options; of
    a baseline the program's options."""
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
    dataset: str = ""
    """Kind of the data set that is learned from, in updates in place of steps."""
    quick_share: int = 5
    """A quick trial has one of so many steps."""
    number: str = ""
    """What a curve's points are, if they are not returns."""
    point: float = 0.5
    """Place of a curve's point in its part: 0.5 for a mean over the part, 1.0 for what its last version does."""
    measures: tuple[tuple[str, str], ...] = ()
    """Keys of other series that results have, and what their points are."""
    baseline_program: str = "returns.baseline"
    margin: float = 0.0
    """Penstock's figure may be so much below its peer's."""
    least: float | None = None
    """The figure at the end that Penstock should have, where no peer has one."""

    def steps_of(self, quick: bool) -> int:
        """Return the environment steps of a trial, or its updates."""
        return self.env_steps // self.quick_share if quick else self.env_steps

    @property
    def measured(self) -> str:
        """Return what the row's curves and its first table show."""
        return self.number or ("scores" if self.dataset else "returns")

    @property
    def unit(self) -> str:
        """Return what a trial's length is counted in."""
        return "updates" if self.dataset else "environment steps"


def _baseline(title: str, *options: str) -> Contender:
    # It plays a fixed number of episodes.
    return Contender(title, "baseline", options, math.inf)


def _mujoco(environment: str, rate: float, peer_rate: float) -> Row:
    preset = ("halfcheetah", "--environment.id", environment)
    # The preset's squashed actions were chosen on HalfCheetah, which charges for large ones.
    clipped = Contender("Penstock, clipped actions", "penstock", (*preset, "--actions", "clipped"), rate)
    return Row(
        f"PPO on {environment}",
        environment,
        999_424,
        5,
        (
            Contender("Penstock", "penstock", preset, rate),
            *(() if environment == "HalfCheetah-v5" else (clipped,)),
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


def _against_sb3(algorithm: str, preset: str, environment: str, rate: float, peer_rate: float) -> Row:
    """Return a row of an off-policy algorithm with a continuous action."""
    name = algorithm.upper()
    return Row(
        f"{name} on {environment}",
        environment,
        300_800,
        3,
        (
            Contender("Penstock", "penstock", (preset, "--environment.id", environment), rate),
            Contender(
                "stable-baselines3",
                "peer",
                ("sb3", "sb3_learning.py", "--algorithm", algorithm, "--environment", environment),
                peer_rate,
            ),
            _baseline("random actions"),
        ),
        "the interquartile mean of the last tenth at least stable-baselines3's",
    )


def _minatar(game: str) -> Row:
    environment = f"MinAtar/{game}-v1"
    own = ("--environment.id", environment)

    def sb3(algorithm: str) -> tuple[str, ...]:
        return "sb3-minatar", "sb3_learning.py", "--algorithm", algorithm, "--environment", environment

    return Row(
        f"DQN and QR-DQN on MinAtar's {game}",
        environment,
        1_024_000,
        3,
        (
            Contender("DQN", "penstock", ("breakout-dqn", *own), 1_200),
            Contender("QR-DQN", "penstock", ("breakout-qrdqn", *own), 500),
            Contender("DQN of stable-baselines3", "peer", sb3("dqn"), 400),
            Contender("QR-DQN of sb3-contrib", "peer", sb3("qrdqn"), 300),
            _baseline("random actions"),
        ),
        "the interquartile mean of the last tenth at least the peer's of the same algorithm",
    )


def _connect_four(title: str, env_steps: int, quick_share: int, *settings: str) -> Row:
    program = "returns.connect_four_learning"
    return Row(
        title,
        "ConnectFour-v0",
        env_steps,
        3,
        (
            Contender("Penstock", "self-play", (program, "connect-four", *settings), 15_000),
            _baseline("random actions", "--policy", "random"),
        ),
        "at least 60 % of games won against minimax of depth 4, and 90 % against random moves",
        quick_share=quick_share,
        point=1.0,
        least=60.0,
        number="games won against minimax of depth 4, %",
        measures=(
            ("wins_against_random", "games won against random moves, %"),
            ("elo", "Elo among the versions of the run, relative to random moves"),
            ("wins_looking_ahead", "games won against minimax of depth 4, looking 4 moves ahead, %"),
        ),
        baseline_program=program,
    )


def _lags(algorithm: str, *settings: str) -> tuple[Contender, ...]:
    """Return a preset at each number of rounds by which the acting policy is behind."""
    return tuple(
        Contender(f"{algorithm}, lag {lag}", "penstock", (*settings, "--lag", str(lag)), 20_000) for lag in range(5)
    )


def _offline(environment: str, dataset: str) -> Row:
    """Return a row of learning from one stored data set, next to d3rlpy on the same rows."""

    def d3rlpy(algorithm: str) -> tuple[str, ...]:
        return "d3rlpy", "d3rlpy_offline.py", "--algorithm", algorithm, "--environment", environment

    return Row(
        f"Offline: {environment}, {dataset}",
        environment,
        50_000,
        3,
        (
            Contender("BC", "replay", ("halfcheetah-bc",), 450),
            Contender("IQL", "replay", ("halfcheetah-iql",), 85),
            Contender("TD3+BC", "replay", ("halfcheetah-td3-bc",), 115),
            Contender("BC of d3rlpy", "peer", d3rlpy("bc"), 370),
            Contender("IQL of d3rlpy", "peer", d3rlpy("iql"), 60),
            Contender("TD3+BC of d3rlpy", "peer", d3rlpy("td3_bc"), 85),
            _baseline("random actions"),
            _baseline("the data", "--policy", "data"),
        ),
        "each algorithm's mean of d3rlpy's or above, or at most 5 below, of 100 between random actions and the expert",
        dataset=dataset,
        quick_share=50,
        margin=5.0,
    )


_IMPALA = (
    *("--environment.id", "HalfCheetah-v5", "--num-envs", "8", "--envs-per-tile", "8", "--round-steps", "256"),
    *("--algorithm.hidden", "[64,64]", "--learning-rate", "3e-4", "--algorithm.discount", "0.99"),
    *("--algorithm.reward-scale", "1.0", "--algorithm.minibatches", "32"),
    *("--algorithm.normalize-observation", "true", "--algorithm.normalize-reward", "true"),
)
"""Of cartpole-impala: the environments, rounds and normalisation of preset halfcheetah, learned from once."""

_OFFLINE = {
    f"offline-{environment.partition('-')[0].lower()}-{dataset}": _offline(environment, dataset)
    for environment in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
    for dataset in ("random", "medium", "medium-replay", "expert")
}

ROWS = {
    "ppo-halfcheetah": _mujoco("HalfCheetah-v5", 10_000, 1_050),
    "ppo-hopper": _mujoco("Hopper-v5", 10_000, 1_050),
    "ppo-walker2d": _mujoco("Walker2d-v5", 10_000, 1_050),
    "ppo-ant": _mujoco("Ant-v5", 6_000, 800),
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
    **_OFFLINE,
    "sac-halfcheetah": _against_sb3("sac", "halfcheetah-sac", "HalfCheetah-v5", 125, 65),
    "sac-hopper": _against_sb3("sac", "halfcheetah-sac", "Hopper-v5", 125, 65),
    "td3-halfcheetah": _against_sb3("td3", "halfcheetah-td3", "HalfCheetah-v5", 65, 70),
    "td3-hopper": _against_sb3("td3", "halfcheetah-td3", "Hopper-v5", 65, 70),
    "minatar-breakout": _minatar("Breakout"),
    "minatar-spaceinvaders": _minatar("SpaceInvaders"),
    "lag-cartpole-ppo": Row(
        "PPO on CartPole-v1 at lag 0 to 4",
        "CartPole-v1",
        409_600,
        5,
        (*_lags("PPO", "cartpole"), _baseline("random actions")),
        "what a policy costs that acts behind the learner; the preset's lag is chosen by it",
    ),
    "lag-cartpole-impala": Row(
        "IMPALA (V-trace) on CartPole-v1 at lag 0 to 4",
        "CartPole-v1",
        409_600,
        5,
        (*_lags("IMPALA", "cartpole-impala"), _baseline("random actions")),
        "what a policy costs that acts behind the learner, where V-trace corrects for it",
    ),
    "lag-halfcheetah-ppo": Row(
        "PPO on HalfCheetah-v5 at lag 0 to 4",
        "HalfCheetah-v5",
        307_200,
        3,
        (*_lags("PPO", "halfcheetah"), _baseline("random actions")),
        "what a policy costs that acts behind the learner, at the recipe of CleanRL",
    ),
    "lag-halfcheetah-impala": Row(
        "IMPALA (V-trace) on HalfCheetah-v5 at lag 0 to 4",
        "HalfCheetah-v5",
        307_200,
        3,
        (*_lags("IMPALA", "cartpole-impala", *_IMPALA), _baseline("random actions")),
        "what a policy costs that acts behind the learner, where V-trace corrects for it",
    ),
    "connect-four": _connect_four("PPO by self-play on connect four", 36_700_160, 56),
    "connect-four-twice": _connect_four(
        "PPO by self-play on connect four, twice as long", 73_400_320, 112, "--algorithm.anneal-rounds", "4480"
    ),
    "pong": Row(
        "PPO on Pong (ALE) from frames",
        "ALE/Pong-v5",
        10_035_200,
        1,
        (Contender("Penstock", "penstock", ("pong",), 400), _baseline("random actions")),
        "a mean return of 18, in several parts: an interrupted run resumes to the same bytes",
        least=18.0,
        parts=49,
    ),
}


START_SECONDS: dict[Kind, float] = {"penstock": 8.0, "replay": 8.0, "self-play": 45.0, "peer": 10.0, "baseline": 5.0}
"""Expected of a trial besides its training; of self-play, the games by which it is measured are a part of them."""


def expected_seconds(row: Row, contender: Contender, length: int | None = None) -> float:
    """Return the estimated seconds of a trial of `length` steps, or updates, with a core for itself; None: in full."""
    return START_SECONDS[contender.kind] + (length or row.env_steps) / contender.steps_per_second
