"""Train Stable-Baselines3's PPO on CartPole-v1 until solved, with the RL zoo's settings or those of Penstock's preset.

Solved: a deterministic mean return of at least 475 over 100 evaluation seeds that no training environment has and no
earlier check used. Evaluation runs during training and its time counts. The setup favours Stable-Baselines3: the
vectorised evaluation calls the policy's layers directly, stops early, and runs only when the last training episodes
were long enough; the run ends as soon as it is solved. After the clock has stopped, one more evaluation on other seeds
shows whether the result holds.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from evaluation import EVALUATION_EPISODES, SOLVED_RETURN, CartPoleEvaluator
from measure import machine, print_result, seconds_since_process_start
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

if TYPE_CHECKING:
    from collections.abc import Callable

TOTAL_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters of one comparison."""

    envs: int
    steps_per_rollout: int
    epochs: int
    minibatch_rows: int
    reward_scale: float
    options: dict[str, Any]


def linear(initial: float) -> Callable[[float], float]:
    """Return a schedule that falls linearly from `initial` to zero over the run."""
    return lambda progress_remaining: progress_remaining * initial


SETTINGS = {
    "zoo": Settings(
        envs=8,
        steps_per_rollout=32,
        epochs=20,
        minibatch_rows=256,
        reward_scale=1.0,
        options={
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "ent_coef": 0.0,
            "learning_rate": linear(1e-3),
            "clip_range": linear(0.2),
        },
    ),
    # These are the settings of Penstock's preset cartpole.toml.
    "preset": Settings(
        envs=32,
        steps_per_rollout=128,
        epochs=4,
        minibatch_rows=1024,
        reward_scale=0.05,
        options={
            "gae_lambda": 0.98,
            "gamma": 0.99,
            "ent_coef": 0.005,
            "learning_rate": 1e-2,
            "clip_range": 0.2,
            "policy_kwargs": {"net_arch": [32, 32]},
        },
    ),
}
# CleanRL's network cannot be chosen: where all have the same, it is this.
SETTINGS["equal"] = replace(
    SETTINGS["preset"], options=SETTINGS["preset"].options | {"policy_kwargs": {"net_arch": [64, 64]}}
)


class ScaledReward(gymnasium.RewardWrapper):
    """Scales rewards for the learner; Monitor, below it, still records the environment's own returns."""

    def __init__(self, env: gymnasium.Env[Any, Any], scale: float) -> None:
        super().__init__(env)
        self._scale = scale

    def reward(self, reward: Any) -> float:
        """Return the scaled reward."""
        return float(reward) * self._scale


class UntilSolved(BaseCallback):
    """Evaluates between rollouts, ends training when solved, and measures the times."""

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
        # This runs before each rollout, with the parameters of the last update.
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
    parser.add_argument("--settings", choices=list(SETTINGS), default="zoo")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--check-every-rollouts", type=int, default=4)
    parser.add_argument("--check-from-return", type=float, default=150.0, help="mean of the last training episodes")
    parser.add_argument("--check-last-episodes", type=int, default=8)
    args = parser.parse_args()

    torch.set_num_threads(args.torch_threads)
    settings = SETTINGS[args.settings]
    environments = make_vec_env(
        "CartPole-v1",
        n_envs=settings.envs,
        seed=args.seed,
        wrapper_class=ScaledReward,
        wrapper_kwargs={"scale": settings.reward_scale},
    )
    model = PPO(
        "MlpPolicy",
        environments,
        n_steps=settings.steps_per_rollout,
        batch_size=settings.minibatch_rows,
        n_epochs=settings.epochs,
        device="cpu",
        seed=args.seed,
        **settings.options,
    )
    until_solved = UntilSolved(args)
    model.learn(TOTAL_STEPS, callback=until_solved)
    end_seconds = until_solved.solved_seconds if until_solved.solved else seconds_since_process_start()
    # The callback ends training one vector step after the check; that step is neither counted nor timed.
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
        "update_rows_per_second": steps * settings.epochs / loop_seconds,
        "loop_seconds": loop_seconds,
        "evaluation_seconds": until_solved.evaluation_seconds,
        "evaluations": until_solved.checks,
        "evaluation_mean_return": until_solved.mean_return,
        "confirmation_mean_return": until_solved.evaluate(),
        "settings": args.settings,
        "envs": settings.envs,
        "steps_per_rollout": settings.steps_per_rollout,
        "epochs": settings.epochs,
        "minibatch_rows": settings.minibatch_rows,
        "torch_threads": args.torch_threads,
        "machine": machine(["stable-baselines3", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
