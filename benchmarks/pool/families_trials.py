"""Tries environments one after the other in a process that may crash or hang: steps, trains or kills them.

benchmarks/pool/families.py starts it with the ids on standard input, a line each, and reads a line of JSON for each.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import json
import os
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pool.families_settings import settings_for

STEPS, ENVS = 100, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trial", choices=["step", "train", "kill"])
    args = parser.parse_args()
    trial = {"step": step, "train": train, "kill": kill}[args.trial]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what they like
    with tempfile.TemporaryDirectory(prefix="penstock-families-") as folder:
        os.chdir(folder)
        for line in sys.stdin:
            name = line.strip()
            begun = time.perf_counter()
            try:
                found = trial(name)
            except Exception as error:  # noqa: BLE001  (each library fails in its own way; the table says how)
                said = f"{type(error).__name__}: {error}".replace(f"{sysconfig.get_path('purelib')}/", "")
                found = {"error": said[:400]}
            found |= {"id": name, "seconds": round(time.perf_counter() - begun, 2)}
            print(json.dumps(found), file=answers, flush=True)


def step(name: str) -> dict[str, Any]:
    """Make a pool of two environments, and take 100 random steps whose results match the spaces."""
    from penstock import native  # noqa: PLC0415  (a trial that trains loads it later)

    with contextlib.closing(native.make(name, ENVS)) as pool:
        space, actions = pool.single_observation_space, pool.action_space
        actions.seed(0)
        observation, _ = pool.reset(seed=0)
        ended = 0
        for at in range(STEPS + 1):
            wrong = mismatch(pool, observation)
            if wrong:
                return {"error": f"step {at}: {wrong}; the space is {space}"[:400]}
            if at == STEPS:
                break
            observation, reward, terminated, truncated, _ = pool.step(allowed(pool, observation, actions.sample()))
            if reward.shape[0] != ENVS or not np.isfinite(reward).all():
                return {"error": f"step {at}: rewards {reward}, expected {ENVS} that are finite"}
            if terminated.dtype != np.bool_ or truncated.dtype != np.bool_:
                return {"error": f"step {at}: flags of {terminated.dtype} and {truncated.dtype}, expected bool"}
            ended += int((terminated | truncated).sum())
    return {"ended": ended}


def allowed(pool: Any, observation: Any, action: Any) -> Any:
    """Return actions of several agents with the first that its mask allows in place of each that it forbids."""
    agents, choices = pool.environment.get("agents"), pool.environment["action"].get("n")
    if not agents or "behind_mask" not in pool.environment["observation"]:
        return action
    masks = observation[:, : agents * choices].reshape(ENVS, agents, choices) != 0
    taken = np.take_along_axis(masks, action[..., None], axis=-1)[..., 0]
    return np.where(taken, action, masks.argmax(axis=-1))


def mismatch(pool: Any, observation: Any) -> str | None:
    """Return what of an observation is not in the space of all environments; None if it is."""
    space = pool.observation_space
    if space.contains(observation):
        return None
    if not isinstance(observation, np.ndarray):
        return f"{str(observation)[:200]} is not in it"
    if observation.shape != space.shape or observation.dtype != space.dtype:
        return f"{observation.dtype} of {observation.shape}, expected {space.dtype} of {space.shape}"
    beyond = (observation < space.low) | (observation > space.high)
    return f"{int(beyond.sum())} values beyond the bounds, such as {observation[beyond][:3]}"


def train(name: str) -> dict[str, Any]:
    """Train one stage of two rounds by PPO, as `penstock train --environment.id NAME` does; return its steps."""
    import penstock  # noqa: PLC0415  (a trial that steps needs neither torch nor Prefect)

    settings: dict[str, Any] = {
        "environment.id": name,
        "environment.num_envs": 4,
        "environment.envs_per_tile": 4,
        "environment.max_episode_steps": 50,
        "schedule.rounds_per_stage": 2,
        "schedule.max_stages": 1,
        "schedule.evaluation_episodes": 1,
        "schedule.target_return": None,
        "cluster.scheduler": shared(),
        "cluster.gang_seconds": 600.0,
        **settings_for(name),
    }
    with tempfile.TemporaryDirectory() as store:
        run = penstock.train({"store": store}, name="one", progress=False, **settings)
        return {"env_steps": int(run.history.column("env_steps")[-1].as_py())}


@functools.cache
def shared() -> str:
    """Start a Prefect server and workers for all runs of this process; return the address of the workers' scheduler.

    A run that starts its own spends three quarters of its CPU time on that.
    """
    import dask  # noqa: PLC0415  (as in `train`)
    from distributed import Nanny, Scheduler, SpecCluster  # noqa: PLC0415

    from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415
    from penstock.tasks.driver.cluster import QUIET  # noqa: PLC0415

    os.environ["PREFECT_HOME"] = str(Path.cwd() / "prefect")
    server = PrefectServer(0)
    server.wait_ready()
    server.direct_here()
    dask.config.set(QUIET)
    here = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    options = {**here, "nthreads": 1, "memory_limit": 0}
    workers = {name: {"cls": Nanny, "options": {**options, "resources": {name: 1}}} for name in ("actor", "learner")}
    cluster = SpecCluster(workers, {"cls": Scheduler, "options": {**here, "port": 0}}, silence_logs=50)
    atexit.register(server.__exit__, None, None, None)
    atexit.register(cluster.close)
    return str(cluster.scheduler_address)


def kill(name: str) -> dict[str, Any]:
    """Kill a run of an id, and compare every byte that it ends with."""
    from benchmarks.pool.families_kills import kill  # noqa: PLC0415  (it needs what tests need)

    return kill(name)


if __name__ == "__main__":
    main()
