"""Stable-Baselines3's PPO on CartPole-v1 until solved, with the hyperparameters of the RL zoo.

Solved: a deterministic mean return of at least 475 over 100 evaluation seeds that no training environment has and no
earlier check used. Evaluation runs during training and its time counts. It is arranged in Stable-Baselines3's favour: a
vectorised evaluation that calls the policy's layers directly and gives up early, only when the last training episodes
were long enough, and the run ends at once when solved. One more evaluation after the clock has stopped, on other
seeds, says whether the result holds.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from evaluation import CartPoleEvaluator
from measure import machine, print_result, seconds_since_process_start
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

if TYPE_CHECKING:
    from collections.abc import Callable

ENVS = 8
STEPS_PER_ROLLOUT = 32
EPOCHS = 20
MINIBATCH_ROWS = 256
TOTAL_STEPS = 100_000
SOLVED_RETURN = 475.0
EVALUATION_EPISODES = 100


def linear(initial: float) -> Callable[[float], float]:
    """Return a schedule that falls linearly from `initial` to zero over the run."""
    return lambda progress_remaining: progress_remaining * initial


class UntilSolved(BaseCallback):
    """Evaluates between rollouts and ends training when solved; keeps the clocks."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.solved = False
        self.checks = 0
        self.rollouts = 0
        self.mean_return = float("nan")
        self.evaluation_seconds = 0.0
        self.first_step_seconds = float("nan")
        self.solved_seconds = float("nan")
        self.solved_steps = 0
        self._every = args.check_every_rollouts
        self._from_return = args.check_from_return
        self._last_episodes = args.check_last_episodes
        self._seed = 1_000_000 * (args.seed + 1)
        self._evaluator = CartPoleEvaluator(EVALUATION_EPISODES)

    def evaluate(self, at_least: float = 0.0) -> float:
        """Return the deterministic mean return over 100 seeds that were not used before."""
        policy = self.model.policy

        def act(observation: np.ndarray) -> np.ndarray:
            latent = policy.mlp_extractor.forward_actor(torch.from_numpy(observation))
            return policy.action_net(latent).argmax(1).numpy()

        seeds = range(self._seed, self._seed + EVALUATION_EPISODES)
        self._seed += EVALUATION_EPISODES
        with torch.inference_mode():
            return self._evaluator.mean_return(act, seeds, at_least)[0]

    def _on_rollout_start(self) -> None:
        # Called before each rollout, so with the parameters that the last update left.
        if self.rollouts == 0:
            self.first_step_seconds = seconds_since_process_start()
        elif self.rollouts % self._every == 0 and self._looks_solved():
            started = time.perf_counter()
            self.checks += 1
            self.mean_return = self.evaluate(SOLVED_RETURN)
            self.evaluation_seconds += time.perf_counter() - started
            if self.mean_return >= SOLVED_RETURN:
                self.solved = True
                self.solved_seconds = seconds_since_process_start()
                self.solved_steps = self.num_timesteps
        self.rollouts += 1

    def _on_step(self) -> bool:
        return not self.solved

    def _looks_solved(self) -> bool:
        episodes = list(self.model.ep_info_buffer)[-self._last_episodes :]
        return bool(episodes) and float(np.mean([episode["r"] for episode in episodes])) >= self._from_return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--check-every-rollouts", type=int, default=4)
    parser.add_argument("--check-from-return", type=float, default=150.0, help="mean of the last training episodes")
    parser.add_argument("--check-last-episodes", type=int, default=8)
    args = parser.parse_args()

    torch.set_num_threads(args.torch_threads)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ENVS, seed=args.seed),
        n_steps=STEPS_PER_ROLLOUT,
        batch_size=MINIBATCH_ROWS,
        n_epochs=EPOCHS,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=linear(1e-3),
        clip_range=linear(0.2),
        device="cpu",
        seed=args.seed,
    )
    until_solved = UntilSolved(args)
    model.learn(TOTAL_STEPS, callback=until_solved)
    end_seconds = until_solved.solved_seconds if until_solved.solved else seconds_since_process_start()
    # The callback ends training one vector step after the check: that step is neither counted nor timed.
    steps = until_solved.solved_steps if until_solved.solved else model.num_timesteps
    loop_seconds = end_seconds - until_solved.first_step_seconds - until_solved.evaluation_seconds
    result = {
        "benchmark": "time to solved",
        "system": "stable-baselines3 PPO",
        "environment": "CartPole-v1",
        "seed": args.seed,
        "solved": until_solved.solved,
        "seconds_to_solved_from_process_start": end_seconds if until_solved.solved else None,
        "seconds_to_solved_from_first_step": end_seconds - until_solved.first_step_seconds
        if until_solved.solved
        else None,
        "start_up_seconds": until_solved.first_step_seconds,
        "env_steps": steps,
        "env_steps_per_second": steps / loop_seconds,
        "update_rows_per_second": steps * EPOCHS / loop_seconds,
        "loop_seconds": loop_seconds,
        "evaluation_seconds": until_solved.evaluation_seconds,
        "evaluations": until_solved.checks,
        "evaluation_mean_return": until_solved.mean_return,
        "confirmation_mean_return": until_solved.evaluate(),
        "envs": ENVS,
        "steps_per_rollout": STEPS_PER_ROLLOUT,
        "epochs": EPOCHS,
        "minibatch_rows": MINIBATCH_ROWS,
        "torch_threads": args.torch_threads,
        "machine": machine(["stable-baselines3", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
