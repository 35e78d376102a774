"""A tile whose environments are tensors: they share a device with the policy, and a round is one piece of work there.

Its rounds are like those of any tile: the same columns, state, noise and seeds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from penstock.native.batch.kernels import BatchError
from penstock.tasks.data.input.fixed_shapes import has_fixed_shapes
from penstock.tasks.environments.header import loaded_header
from penstock.tasks.environments.torch.pool import make_torch_pool
from penstock.tasks.environments.torch.rollout import RoundPlayer
from penstock.tasks.environments.typed_settings import arguments_of
from penstock.tasks.roles.acting.tile import ActedRound, Later, TileActor
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import Tensor

    from penstock.tasks.roles.acting.tile import RoundBuffers
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Params


class DeviceParams:
    """A copy of the newest parameters on a device, at fixed addresses: a CUDA graph holds those."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, dict[str, Tensor]] = {}

    def load(self, params: Params) -> Params:
        """Overwrite the copy with parameters; returns the same tensors each time."""
        with torch.inference_mode(mode=False), torch.no_grad():
            for group, tensors in params.items():
                held = self._held.setdefault(group, {})
                for name, value in tensors.items():
                    if name in held:
                        held[name].copy_(value)
                    else:
                        held[name] = value.detach().to(self._device, copy=True)
        return self._held


class TorchTileActor(TileActor):
    """Owns a tile's environments on a device. Not thread-safe.

    Its parameters must be on the device, and be the same tensors each round (`DeviceParams`): others make it capture
    the round again.
    """

    def __init__(self, context: RunContext, tile: int, device: torch.device) -> None:
        settings = context.config.environment
        with loaded_header(settings) as environment_id:
            given = arguments_of(settings, environment_id, settings.envs_per_tile)
            self._torch_pool = make_torch_pool(
                environment_id, settings.envs_per_tile, device, settings.max_episode_steps, **given
            )
        super().__init__(context, tile, self._torch_pool)
        self._params: Params | None = None
        self._player: RoundPlayer | None = None
        self._rows: dict[str, Tensor] = {}

    def _play(self, params: Params, buffers: RoundBuffers) -> Generator[None, None, None]:
        player = self._player_of(params)
        if player.carry is not None and self._carry is not None:
            player.carry.copy_(self._carry)
        player.stage(buffers.noise)
        # All tiles are prepared before one is played: between their rounds nothing comes from the host.
        yield
        try:
            player.play(to_host=False)
        except BatchError as error:
            self._refuse_diverged(player.rows["action"].cpu(), error)
            raise
        # Copies: the next round is played while this one goes to the host.
        self._carry = None if player.carry is None else player.carry.clone()
        self._rows = {name: column.clone() for name, column in player.rows.items()}

    def _acted(self, version: int, buffers: RoundBuffers) -> ActedRound:
        ended = self._torch_pool.end_on_device({} if self._carry is None else {"carry": self._carry})
        record = ended.record
        rows = record.leaving_rows(fixed=has_fixed_shapes(self._context, self._torch_pool.device))
        after = record.final_observation.flatten(0, 1).index_select(0, rows)
        return ActedRound(
            self.tile,
            self.next_round,
            version,
            buffers,
            Later(ended.facts),
            on_device=Trajectory({**record.columns, **self._rows}, rows, after, self._env_ids.start),
            departure=ended.departure,
        )

    def _player_of(self, params: Params) -> RoundPlayer:
        if self._player is None or self._params is not params:
            algorithm = self._context.algorithm
            with torch.inference_mode(mode=False):
                self._player = RoundPlayer(
                    self._torch_pool,
                    partial(algorithm.act, params),
                    algorithm.rows,
                    algorithm.noise.shape,
                    self._context.config.schedule.round_steps,
                    algorithm.initial_carry(len(self._env_ids)),
                )
            self._params = params
        return self._player
