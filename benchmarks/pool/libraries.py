"""Measures the libraries that Penstock equals, in the same stepping loop: Gymnasium's vectoriser, ale-py's, bare games.

    python -m benchmarks.pool.libraries --library gymnasium --id FrozenLake-v1 --num-envs 64 --actions discrete:4
    python -m benchmarks.pool.libraries --library ale --id ALE/Pong-v5 --num-envs 64 --actions discrete:6

A bare game is stepped by ale-py's emulator alone, each frame of a step by one call: no screen is read, resized or
stacked, and threads are processes. It bounds what any pool over that emulator can reach.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import ale_py  # registers its games
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv

from benchmarks.peers.measure import print_result
from benchmarks.peers.stepping import measure, random_actions

FRAMES = 4
"""Frames of a step, as in the pool's games."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=["gymnasium", "ale", "emulator"], required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--actions", required=True)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    rate = {"gymnasium": vectorised, "ale": ale, "emulator": bare_games}[args.library](args)
    print_result({"env_steps_per_second": rate})


def vectorised(args: argparse.Namespace) -> float:
    """Step with Gymnasium's SyncVectorEnv."""
    if args.id.startswith("MiniGrid"):
        import minigrid  # noqa: F401, PLC0415
    environments = gymnasium.make_vec(args.id, args.num_envs, vectorization_mode="sync")
    environments.reset(seed=0)

    def step(actions: Any) -> tuple[Any, Any]:
        _, _, terminated, truncated, _ = environments.step(actions)
        return terminated, truncated

    actions = random_actions(args.actions, args.num_envs, "int64")
    return measure(step, actions, args.num_envs, args.seconds, resets_take_a_step=True)


def ale(args: argparse.Namespace) -> float:
    """Step with ale-py's vector environment; asynchronously with a third of the environments in each batch."""
    batch_size = args.num_envs if args.mode == "sync" else max(1, args.num_envs // 3)
    kwargs = gymnasium.spec(args.id).kwargs
    games = AtariVectorEnv(num_envs=args.num_envs, batch_size=batch_size, num_threads=args.num_threads, **kwargs)
    games.reset(seed=0)

    def step(actions: Any) -> tuple[Any, Any]:
        games.send(actions)
        _, _, terminated, truncated, _ = games.recv()
        return terminated, truncated

    actions = random_actions(args.actions, batch_size, "int64")
    return measure(step, actions, batch_size, args.seconds, resets_take_a_step=True)


def bare_games(args: argparse.Namespace) -> float:
    """Step the emulators alone, in a process for each thread."""
    each = args.num_envs // args.num_threads
    with ProcessPoolExecutor(args.num_threads, mp_context=get_context("spawn")) as processes:
        arguments = (args.id, each, args.actions, args.seconds)
        shares = [processes.submit(emulators, *arguments) for _ in range(args.num_threads)]
        return sum(share.result() for share in shares)


def emulators(environment_id: str, count: int, space: str, seconds: float) -> float:
    """Step `count` games in turn; one that is over starts again at once."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    kwargs = gymnasium.spec(environment_id).kwargs
    games = [ale_py.ALEInterface() for _ in range(count)]
    for seed, game in enumerate(games):
        game.setInt("random_seed", seed)
        game.setFloat("repeat_action_probability", kwargs["repeat_action_probability"])
        game.loadROM(ale_py.roms.get_rom_path(kwargs["game"]))
    choices = games[0].getMinimalActionSet()
    over = np.zeros(count, dtype=np.bool_)

    def step(actions: Any) -> tuple[Any, Any]:
        for index, game in enumerate(games):
            action = choices[actions[index]]
            for _ in range(FRAMES):
                game.act(action)
            if game.game_over():
                game.reset_game()
        return over, over

    return measure(step, random_actions(space, count, "int64"), count, seconds, resets_take_a_step=False)


if __name__ == "__main__":
    main()
