"""Implements Pendulum-v1 in torch, in the order of operations of `native/include/penstock/envs/pendulum.hpp`.

The torque is float32 in the same places.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from penstock.tasks.environments.torch.environment import TorchEnvironment

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.tasks.environments.torch.environment import Configuration

_MAX_SPEED, _MAX_TORQUE, _STEP_SECONDS = 8.0, 2.0, 0.05


def reset(random: Tensor) -> Tensor:
    """Start with an angle uniform in [-pi, pi) and a speed in [-1, 1)."""
    angle, speed = random.unbind(0)
    return torch.stack((-math.pi + (math.pi - -math.pi) * angle, -1.0 + 2.0 * speed))


def step(config: Configuration, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a torque, float32 `[B, 1]`, clipped to its bounds. Only its limit ends an episode."""
    angle, speed = state.unbind(0)
    g, m, length = config["g"], config["m"], config["l"]
    torque = action[:, 0].clamp(-_MAX_TORQUE, _MAX_TORQUE)
    normal_angle = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
    cost = normal_angle * normal_angle + 0.1 * (speed * speed) + 0.001 * (torque * torque)
    acceleration = 3 * g / (2 * length) * angle.sin() + (3.0 / (m * (length * length))).float() * torque
    speed = (speed + acceleration * _STEP_SECONDS).clamp(-_MAX_SPEED, _MAX_SPEED)
    angle = angle + speed * _STEP_SECONDS
    return torch.stack((angle, speed)), -cost, torch.zeros_like(speed, dtype=torch.bool)


def observe(state: Tensor) -> Tensor:
    """Return the cosine and sine of the angle, and the speed, float32 `[B, 3]`."""
    angle, speed = state.unbind(0)
    return torch.stack((angle.cos(), angle.sin(), speed), -1).float()


ENVIRONMENT = TorchEnvironment(("angle", "speed"), 2, reset, step, observe)
