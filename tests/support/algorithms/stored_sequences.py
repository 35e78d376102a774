"""Stored rounds of which training rows are sequences, for tests of algorithms that clone actions with a memory."""

from typing import Any

import torch
from torch import Tensor

from penstock.tasks.specs import ActionLeaf, ActionSpec, Batch, EnvironmentSpec, Spec, Trajectory

from .ppo_cases import CHOICES, random

STEPS, ENVS, SEQUENCE, BURN_IN, WIDTH = 12, 3, 4, 3, 6
MEMORY: dict[str, Any] = {
    "network": "recurrent",
    "features": WIDTH,
    "hidden": (8,),
    "sequence_steps": SEQUENCE,
    "burn_in_steps": BURN_IN,
}
BOX = ActionSpec("box", shape=(2,), low=(-1.0, -2.0), high=(1.0, 3.0))
VECTORS = EnvironmentSpec("Reach-v0", Spec("float32", (3,)), BOX, None, None)
BOTH = ActionSpec("structured", shape=(2,), leaves=(ActionLeaf("turn", (3,)), ActionLeaf("push", (0,))))
STRUCTURED = EnvironmentSpec("Both-v0", Spec("float32", (3,)), BOTH, None, None)


def shown(environment: EnvironmentSpec = CHOICES) -> Trajectory:
    """A stored round of three environments; two episodes of the second one end within, and one of the third.

    Its memories are of another width than `WIDTH`, as of another algorithm's networks.
    """
    generator = torch.Generator().manual_seed(2)
    if environment is CHOICES:
        action = torch.randint(environment.action.n, (STEPS, ENVS), generator=generator)
    else:
        action = random(STEPS, ENVS, 2, seed=3)
    if environment is STRUCTURED:
        action[..., 0] = torch.randint(3, (STEPS, ENVS), generator=generator).float()
    terminated = torch.zeros(STEPS, ENVS, dtype=torch.uint8)
    truncated = terminated.clone()
    terminated[4, 1], truncated[9, 1], truncated[7, 2] = 1, 1, 1
    columns = {"observation": random(STEPS, ENVS, 3, seed=4), "action": action, "reward": random(STEPS, ENVS, seed=6)}
    columns |= {"terminated": terminated, "truncated": truncated, "memory": random(STEPS, ENVS, 2, 5, seed=5)}
    last = torch.tensor([4 * ENVS + 1, 7 * ENVS + 2, 9 * ENVS + 1, *range((STEPS - 1) * ENVS, STEPS * ENVS)])
    return Trajectory(columns, last, random(len(last), 3, seed=8))


def log_likelihood(environment: EnvironmentSpec, output: Tensor, log_std: Tensor | None, action: Tensor) -> Tensor:
    """Return the log-likelihood of one action by torch's own distributions, of the network's outputs `[n]`."""
    if log_std is None:
        return torch.distributions.Categorical(logits=output).log_prob(action)
    normal, deviation = torch.distributions.Normal, log_std.exp()
    if environment is STRUCTURED:
        choice = torch.distributions.Categorical(logits=output[:3]).log_prob(action[0].long())
        return choice + normal(output[3], deviation[0]).log_prob(action[1])
    return normal(output, deviation).log_prob(action).sum()


def by_sequence(values: Tensor) -> Tensor:
    """Cut `[T, B, ...]` into `[rows, steps, ...]`, sequences of one time after the other."""
    return values.unflatten(0, (-1, SEQUENCE)).transpose(1, 2).flatten(0, 1)


def cued(envs: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Return columns of two episodes of three steps, without actions, and the cues `[2, envs]` of their first steps.

    A cue is one of two choices; nothing is seen in the other steps.
    """
    cue = torch.randint(2, (2, envs), generator=generator)
    observation, ended = torch.zeros(6, envs, 3), torch.zeros(6, envs, dtype=torch.uint8)
    ended[2], ended[5] = 1, 1
    for at in (0, 1):
        observation[3 * at, torch.arange(envs), cue[at]] = 1.0
    return {"observation": observation, "terminated": ended, "truncated": torch.zeros_like(ended)}, cue
