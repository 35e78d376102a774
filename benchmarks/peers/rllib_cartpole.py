"""Measures RLlib's PPO on CartPole-v1: the total peak memory of all its processes, on two cores.

Peak memory is the proportional set size summed over this process and all its descendants (Ray's daemons, the
environment runners), sampled while it runs. The settings are those of RLlib's own CartPole example, with the learner
in this process as by default and one remote environment runner (RLlib's default is two, which need more memory). Stops
when solved by RLlib's own measure (the mean return of the last training episodes), or when time runs out.
"""

from __future__ import annotations

import argparse
import logging
import os
import warnings

import ray
from measure import PeakPss, machine, print_result, seconds_since_process_start
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-cpus", type=int, default=2, help="what Ray is told that the machine has")
    parser.add_argument("--num-env-runners", type=int, default=1)
    parser.add_argument("--envs-per-runner", type=int, default=1)
    parser.add_argument("--stop-return", type=float, default=475.0)
    parser.add_argument("--stop-seconds", type=float, default=60.0, help="of training; start-up is not counted")
    parser.add_argument("--sample-interval-seconds", type=float, default=0.25)
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with PeakPss(interval_seconds=args.sample_interval_seconds) as memory:
        imported_bytes = memory.sample()
        ray.init(num_cpus=args.num_cpus, logging_level=logging.ERROR, log_to_driver=False)
        config = (
            PPOConfig()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=args.num_env_runners, num_envs_per_env_runner=args.envs_per_runner)
            .training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01)
            .rl_module(
                model_config=DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True)
            )
            .debugging(seed=args.seed, log_level="ERROR")
        )
        algorithm = config.build_algo()
        built_bytes = memory.sample()
        started = seconds_since_process_start()
        iterations, steps, mean_return, solved = 0, 0, float("nan"), False
        while not solved and seconds_since_process_start() - started < args.stop_seconds:
            metrics = algorithm.train()["env_runners"]
            iterations += 1
            steps = int(metrics["num_env_steps_sampled_lifetime"])
            mean_return = float(metrics.get("episode_return_mean", float("nan")))
            solved = mean_return >= args.stop_return
        ended = seconds_since_process_start()
        memory.sample()
    algorithm.stop()
    ray.shutdown()

    result = {
        "benchmark": "peak memory",
        "system": "RLlib PPO",
        "environment": "CartPole-v1",
        "seed": args.seed,
        "peak_pss_bytes": memory.peak_bytes,
        "peak_processes": memory.peak_processes,
        "peak_pss_bytes_by_process_name": memory.by_process,
        "driver_imported_pss_bytes": imported_bytes,
        "built_pss_bytes": built_bytes,
        "samples": memory.samples,
        "sample_interval_seconds": args.sample_interval_seconds,
        "solved": solved,
        "seconds_to_solved_from_process_start": ended if solved else None,
        "seconds_to_solved_from_first_step": ended - started if solved else None,
        "start_up_seconds": started,
        "iterations": iterations,
        "env_steps": steps,
        "env_steps_per_second": steps / (ended - started),
        "training_mean_return": mean_return,
        "epochs": config.num_epochs,
        "minibatch_rows": config.minibatch_size,
        "num_env_runners": args.num_env_runners,
        "envs_per_runner": args.envs_per_runner,
        "machine": machine(["ray", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
