"""Names the workloads of the board: presets with settings, and who runs them."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "Penstock, lag 1"
ALONE = "acting and updating alone, by Penstock's functions"
RANDOM = "random actions"

START_SECONDS = 6.0
"""A contender's start and end on two cores, for estimates: imports, processes, servers."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A preset with settings, and who runs it."""

    title: str
    preset: str
    settings: tuple[str, ...]
    equal: tuple[str, ...]
    """Peers at the same settings."""
    others: tuple[str, ...]
    """Peers at other settings, which they publish."""
    rounds_per_stage: int
    stage_seconds: float
    """Expected on two cores, for the number of stages."""
    goal: float = 1.0
    """Ratio to the best peer at equal settings that Penstock should reach."""
    judged: str = OURS
    """The row of Penstock that the goal is for."""
    against: str | None = None
    """The peer that the goal is for; None: the fastest at equal settings."""
    note: str = ""

    def stages(self, seconds: float) -> int:
        """Return how many stages measure for about so long, after a first one that warms up."""
        return 1 + max(2, round(seconds / self.stage_seconds))


WORKLOADS = {
    "ppo": Workload(
        "PPO on CartPole-v1: [64, 64], 32 x 128 rows a round, 4 epochs of 4 minibatches",
        "cartpole",
        ("--hidden", "[64, 64]"),
        ("SB3, equal", "CleanRL, equal"),
        ("SB3, RL zoo", "CleanRL, own"),
        rounds_per_stage=60,
        stage_seconds=1.3,
        goal=4.0,
        note="CleanRL's `ppo.py` steps the CartPole of gym 0.23.1, stable-baselines3 that of Gymnasium 1.4.",
    ),
    "dqn": Workload(
        "DQN on CartPole-v1: [120, 84], 25 updates of 128 rows each 256 steps",
        "cartpole-dqn",
        (
            *("--double", "false", "--dueling", "false", "--return-steps", "1", "--huber", "true"),
            *("--gradient-norm", "10"),
        ),
        ("SB3, equal",),
        ("SB3, RL zoo", "CleanRL, own"),
        rounds_per_stage=120,
        stage_seconds=2.2,
        goal=2.0,
        judged="Penstock, lag 0",
        note="CleanRL's `dqn.py` has one environment and cannot have eight; its own settings are 10 updates of 128\n"
        "rows each 100 steps, of the same network: nearly the same work a step.",
    ),
    "sac": Workload(
        "SAC on Pendulum-v1: [64, 64], an update of 256 rows for each step",
        "pendulum-sac",
        (),
        ("SB3, equal",),
        ("SB3, RL zoo", "CleanRL, own"),
        rounds_per_stage=40,
        stage_seconds=5.0,
        goal=2.0,
        judged="Penstock, lag 0",
        note="CleanRL's `sac_continuous_action.py` has a network of [256, 256] and cannot have another.",
    ),
    "halfcheetah": Workload(
        "PPO on HalfCheetah-v5: CleanRL's recipe, 2,048 rows a round, 10 epochs of 32 minibatches",
        "halfcheetah",
        (
            *("--actions", "clipped", "--advantage-normalization", "minibatch"),
            *("--value-clip-range", "0.2", "--joint-gradient-norm", "true"),
        ),
        ("SB3, equal",),
        ("SB3, RL zoo", "CleanRL, own"),
        rounds_per_stage=20,
        stage_seconds=3.5,
        goal=8.0,
        against="CleanRL, own",
        judged="Penstock, lag 0",
        note="CleanRL's script has the same rows, epochs and minibatches, of one environment with 2,048 steps a round\n"
        "where the others have 8 with 256. The goal is set against it, as it is the source of the recipe.",
    ),
    "pong": Workload(
        "PPO on Pong (ALE) from frames: Nature's convolutions, 1,024 rows a round, 4 epochs of 4 minibatches",
        "pong",
        ("--environment.settings.repeat-action-probability", "0.0"),
        ("SB3, equal", "CleanRL, equal"),
        ("CleanRL, own",),
        # A stage begins with new episodes, for which ale-py needs seconds; the preset's have 200 rounds.
        rounds_per_stage=10,
        stage_seconds=30.0,
        goal=1.6,
        note="CleanRL's script has EnvPool's environments; its own settings are 8 of them with 128 steps a round.\n"
        "Here peers had two torch threads, and stable-baselines3 a process for each environment.",
    ),
}


@dataclass(frozen=True, slots=True)
class Solver:
    """Settings with which CartPole is solved, and the seconds that this takes on two cores, for estimates."""

    settings: tuple[str, ...]
    equal: bool
    seconds: float


SOLVERS = {
    "Penstock": Solver(("cartpole", "--hidden", "[64, 64]"), equal=True, seconds=9.0),
    "SB3, equal": Solver(("sb3", "sb3_cartpole.py", "--settings", "equal"), equal=True, seconds=5.0),
    "CleanRL, equal": Solver(("cleanrl", "cleanrl_cartpole.py", "--settings", "equal"), equal=True, seconds=7.0),
    "Penstock, preset": Solver(("cartpole",), equal=False, seconds=8.0),
    "SB3, RL zoo": Solver(("sb3", "sb3_cartpole.py", "--settings", "zoo"), equal=False, seconds=6.0),
    "CleanRL, own": Solver(("cleanrl", "cleanrl_cartpole.py", "--settings", "own"), equal=False, seconds=20.0),
}
SOLVED_TITLE = "CartPole-v1 until solved: seconds from the command"
