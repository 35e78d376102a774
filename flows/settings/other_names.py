"""Names under which other libraries have our settings, for the hint after one that is none of ours."""

from __future__ import annotations

OTHER_NAMES = {
    "env": "environment.id",
    "env_id": "environment.id",
    "gym_id": "environment.id",
    "n_envs": "environment.num_envs",
    "algo": "algorithm.name",
    "n_steps": "schedule.round_steps",
    "num_steps": "schedule.round_steps",
    "total_timesteps": "schedule.max_stages",
    "timesteps": "schedule.max_stages",
    "steps": "schedule.max_stages",
    "lr": "algorithm.learning_rate",
    "gamma": "algorithm.discount",
    "gae_lambda": "algorithm.trace_decay",
    "ent_coef": "algorithm.entropy_weight",
    "vf_coef": "algorithm.value_weight",
    "clip_coef": "algorithm.clip_range",
    "max_grad_norm": "algorithm.gradient_norm",
    "n_epochs": "algorithm.epochs",
    "update_epochs": "algorithm.epochs",
    "num_minibatches": "algorithm.minibatches",
    "batch_size": "algorithm.minibatches algorithm.minibatch_rows",
    "buffer_size": "algorithm.window_rows",
    "learning_starts": "algorithm.warm_up_rows",
    "tau": "algorithm.target_share",
    "net_arch": "algorithm.hidden",
}
"""Options of stable-baselines3, its zoo and CleanRL, in which each is the whole name or its last part.

PPO and its kin divide a round into `minibatches`, where other algorithms draw `minibatch_rows`."""
