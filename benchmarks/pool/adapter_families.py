"""The families of `adapter_throughput.py`: an id of each, and a loop that steps the same one without Penstock.

A loop is what the family's own documentation shows for several environments: a vector environment where it has one,
otherwise one environment after the other. Episodes end and begin in the same step where the library can do that, as in
Penstock's rounds, so that both sides make the same steps of the same episodes.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Loop = Callable[[NDArray[Any]], object]
    """Makes a step with actions `[num_envs, ...]`, as Penstock's pool takes them."""

SEED = 22


@dataclass(frozen=True)
class Family:
    """An id that stands for its family."""

    id: str
    num_envs: int
    alone: Callable[[Family], Loop]
    """Makes the environments without Penstock, seeded alike."""
    run: dict[str, Any] = field(default_factory=dict)
    """Settings of a run that acts in it, but its id and numbers."""
    note: str = ""

    @property
    def seeds(self) -> list[int]:
        """Return the seed of each environment."""
        return [SEED + index for index in range(self.num_envs)]


def of_gymnasium(family: Family) -> Loop:
    """Step Gymnasium's SyncVectorEnv."""
    name = family.id.removeprefix("gymnasium/").removeprefix("minigrid/").removeprefix("socket/")
    wrappers = []
    if family.id.startswith("MinAtar/"):
        from minatar.gym import register_envs  # noqa: PLC0415  (an optional package, as those below)

        if name not in gymnasium.registry:
            register_envs()
    elif family.id.startswith("minigrid/"):
        from minigrid.wrappers import ImgObsWrapper  # noqa: PLC0415

        wrappers = [ImgObsWrapper]
    envs = gymnasium.make_vec(
        name,
        family.num_envs,
        "sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        wrappers=wrappers,
    )
    assert type(envs) is SyncVectorEnv
    envs.reset(seed=family.seeds)
    return envs.step


def of_ale(family: Family) -> Loop:
    """Step ale-py's own vector environment, with one thread, as the pool has."""
    envs = gymnasium.make_vec(
        family.id, family.num_envs, "vector_entry_point", num_threads=1, autoreset_mode=AutoresetMode.SAME_STEP
    )
    envs.reset(seed=np.array(family.seeds))
    return envs.step


def of_envpool(family: Family) -> Loop:
    """Step EnvPool, with one thread; it resets in the step after an episode's end and knows no other way."""
    import envpool  # noqa: PLC0415

    name = family.id.removeprefix("envpool/")
    envs = envpool.make_gymnasium(name, num_envs=family.num_envs, num_threads=1, seed=family.seeds)
    envs.reset()
    dtype = np.int32 if hasattr(envs.action_space, "n") else envs.action_space.dtype
    return lambda action: envs.step(action.astype(dtype))


def of_dm_control(family: Family) -> Loop:
    """Step dm_control's tasks one after the other."""
    from dm_control import suite  # noqa: PLC0415

    domain, _, task = family.id.removeprefix("dm_control/").partition("-")
    envs = [suite.load(domain, task, task_kwargs={"random": seed}) for seed in family.seeds]
    for env in envs:
        env.reset()

    def step(actions: NDArray[Any]) -> None:
        for env, action in zip(envs, actions, strict=True):
            if env.step(action).last():
                env.reset()

    return step


def of_pettingzoo(family: Family) -> Loop:
    """Step PettingZoo's parallel environments one after the other."""
    from importlib import import_module  # noqa: PLC0415

    kind, _, name = family.id.removeprefix("pettingzoo/").partition("/")
    module = import_module(f"{'mpe2' if kind == 'mpe' else f'pettingzoo.{kind}'}.{name}")
    envs = [module.parallel_env() for _ in family.seeds]
    for env, seed in zip(envs, family.seeds, strict=True):
        env.reset(seed=seed)

    def step(actions: NDArray[Any]) -> None:
        for env, chosen in zip(envs, actions.tolist(), strict=True):
            env.step(dict(zip(env.agents, chosen, strict=True)))
            if not env.agents:
                env.reset()

    return step


class Server:
    """Serves the id behind a socket in a process of its own, with one thread a connection."""

    def __init__(self, name: str) -> None:
        from penstock.native.sockets import server  # noqa: PLC0415

        command = [sys.executable, server.__file__, name, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[2].rstrip(";")

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate()


SMALL = {"algorithm": {"network": "small"}}
FAMILIES = {
    "Gymnasium": Family("gymnasium/CartPole-v1", 64, of_gymnasium),
    "Gymnasium, 8 at once": Family("gymnasium/CartPole-v1", 8, of_gymnasium),
    "Gymnasium, MuJoCo": Family("gymnasium/HalfCheetah-v5", 16, of_gymnasium),
    "Atari": Family("ALE/Pong-v5", 4, of_ale, {"algorithm": {"network": "nature"}}),
    "MinAtar": Family("MinAtar/Breakout-v1", 64, of_gymnasium, SMALL),
    "MiniGrid": Family("minigrid/MiniGrid-DoorKey-8x8-v0", 32, of_gymnasium, SMALL),
    "EnvPool": Family("envpool/CartpoleBalance-v1", 64, of_envpool),
    "EnvPool, a larger body": Family("envpool/HalfCheetah-v5", 64, of_envpool),
    "dm_control": Family("dm_control/cartpole-balance", 32, of_dm_control),
    "PettingZoo": Family(
        "pettingzoo/mpe/simple_spread_v3", 16, of_pettingzoo, {"algorithm": {"name": "mappo"}}, "three agents each"
    ),
    "Socket": Family("socket/CartPole-v1", 64, of_gymnasium, note="the same environments in this process"),
}
