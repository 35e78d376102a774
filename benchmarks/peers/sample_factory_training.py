"""Measures Sample Factory's asynchronous PPO: environment steps per second of the whole loop, and peak memory.

Acting and learning run concurrently in separate processes, without waiting for each other. The settings are those of
Sample Factory's own Gymnasium and MuJoCo examples, with one rollout worker per core and a tanh network, or with
`--atari` those of its Atari example. The rate counts from the first report after `--warm-up-seconds` of training to the
last one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import gymnasium as gym
from measure import PeakPss, machine, print_result, seconds_since_process_start
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults
from sf_examples.atari.atari_utils import make_atari_env


class Reports(AlgoObserver):
    """Records the time and the number of environment steps of each reported training step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.env_steps: list[int] = []

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:  # noqa: ARG002
        """Record the report, and give the runner its training time, which ends the run when it is long enough."""
        self.seconds.append(time.perf_counter())
        self.env_steps.append(runner.total_env_steps_since_resume)
        # Sample Factory 2.1.1 compares this with --train_for_seconds but never increments it.
        runner.total_train_seconds = self.seconds[-1] - self.seconds[0]


def make_env(name: str, _cfg: Any = None, _env_config: Any = None, render_mode: str | None = None) -> gym.Env:
    return gym.make(name, render_mode=render_mode)


def make_frames(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gym.Env:
    import ale_py  # noqa: F401, PLC0415  (registers its games; installed only for Atari)

    return make_atari_env(name, cfg, env_config, render_mode)


def dense_options(args: argparse.Namespace) -> list[str]:
    """Return the options of perceptrons for vector observations."""
    return [
        "--use_rnn=False",
        "--recurrence=1",
        "--with_vtrace=False",
        "--reward_scale=0.1",
        "--encoder_mlp_layers",
        *map(str, args.hidden),
        "--nonlinearity=tanh",
        f"--normalize_input={args.normalize}",
        f"--normalize_returns={args.normalize}",
    ]


def atari_options() -> list[str]:
    """Return options that its example leaves at the general defaults; steps count as steps, not as frames."""
    return ["--encoder_conv_mlp_layers", "512", "--summaries_use_frameskip=False"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--environment", default="CartPole-v1")
    parser.add_argument("--atari", action="store_true", help="frames; the environment's name is one of the example's")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--normalize", action="store_true", help="observations and returns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--envs-per-worker", type=int, default=20)
    parser.add_argument("--policy-workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--minibatch-rows", type=int, default=512)
    parser.add_argument("--train-seconds", type=int, default=25)
    parser.add_argument("--warm-up-seconds", type=float, default=5.0)
    args = parser.parse_args()

    reports = Reports()
    with tempfile.TemporaryDirectory() as folder, PeakPss() as memory:
        register_env(args.environment, make_frames if args.atari else make_env)
        options = [
            "--algo=APPO",
            f"--env={args.environment}",
            "--experiment=benchmark",
            f"--train_dir={folder}",
            f"--seed={args.seed}",
            "--device=cpu",
            "--async_rl=True",
            f"--num_workers={args.num_workers}",
            f"--num_envs_per_worker={args.envs_per_worker}",
            f"--policy_workers_per_policy={args.policy_workers}",
            f"--batch_size={args.minibatch_rows}",
            f"--num_epochs={args.epochs}",
            *(atari_options() if args.atari else dense_options(args)),
            "--decorrelate_experience_max_seconds=0",
            f"--train_for_seconds={args.train_seconds}",
        ]
        settings, _ = parse_sf_args(argv=options)
        if args.atari:
            atari_override_defaults(args.environment, settings)
        _, runner = make_runner(parse_full_cfg(settings, options))
        runner.register_observer(reports)
        runner.init()
        start_up_seconds = seconds_since_process_start()
        runner.run()

    if not reports.seconds or reports.seconds[-1] - reports.seconds[0] <= args.warm_up_seconds:
        raise SystemExit("training ended within the warm-up: give more --train-seconds or less --warm-up-seconds")
    begin = next(i for i, seconds in enumerate(reports.seconds) if seconds - reports.seconds[0] >= args.warm_up_seconds)
    seconds = reports.seconds[-1] - reports.seconds[begin]
    rate = (reports.env_steps[-1] - reports.env_steps[begin]) / seconds
    result = {
        "benchmark": "asynchronous training",
        "system": "Sample Factory APPO",
        "environment": args.environment,
        "seed": args.seed,
        "env_steps": reports.env_steps[-1],
        "env_steps_per_second": rate,
        "update_rows_per_second": rate * args.epochs,
        "measured_seconds": seconds,
        "start_up_seconds": start_up_seconds,
        "peak_pss_bytes": memory.peak_bytes,
        "peak_processes": memory.peak_processes,
        "peak_pss_bytes_by_process_name": memory.by_process,
        "envs": args.num_workers * args.envs_per_worker,
        "epochs": args.epochs,
        "minibatch_rows": args.minibatch_rows,
        "machine": machine(["sample-factory", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
