"""Implements CartPole-v1 in torch, in the order of operations of `native/include/penstock/envs/cartpole.hpp`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from penstock.tasks.environments.torch.environment import TorchEnvironment

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.tasks.environments.torch.environment import Configuration

_X_LIMIT = 2.4
_ANGLE_LIMIT = 12 * 2 * math.pi / 360


def reset(random: Tensor) -> Tensor:
    """Start uniformly in [-0.05, 0.05), as NumPy's `uniform` computes it: low + (high - low) * random."""
    return -0.05 + (0.05 - -0.05) * random


def step(config: Configuration, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Push left (0) or right (1)."""
    x, x_dot, angle, angle_dot = state.unbind(0)
    masspole, length, tau = config["masspole"], config["length"], config["tau"]
    total_mass, polemass_length = masspole + config["masscart"], masspole * length
    force, cosine, sine = (2 * action - 1) * config["force_mag"], angle.cos(), angle.sin()
    push = (force + polemass_length * (angle_dot * angle_dot) * sine) / total_mass
    angle_acc = (config["gravity"] * sine - cosine * push) / (
        length * (4.0 / 3.0 - masspole * (cosine * cosine) / total_mass)
    )
    x_acc = push - polemass_length * angle_acc * cosine / total_mass
    x, x_dot = x + tau * x_dot, x_dot + tau * x_acc
    angle, angle_dot = angle + tau * angle_dot, angle_dot + tau * angle_acc
    fell = (x.abs() > _X_LIMIT) | (angle.abs() > _ANGLE_LIMIT)
    reward = torch.where(config["sutton_barto_reward"], 0.0 - fell.double(), torch.ones_like(x))
    return torch.stack((x, x_dot, angle, angle_dot)), reward, fell


def observe(state: Tensor) -> Tensor:
    """Return the state itself, float32 `[B, 4]`."""
    return state.T.float()


ENVIRONMENT = TorchEnvironment(("x", "x_dot", "angle", "angle_dot"), 4, reset, step, observe)
