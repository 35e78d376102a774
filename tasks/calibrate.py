"""Asks another process to try a configuration; the process that drives a run imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from storage.errors import ConfigError, GangRefusedError
from tasks.cost import Sizes
from tasks.round_time import PartSeconds

if TYPE_CHECKING:
    from distributed import Client

    from tasks.config import RunConfig

_SECONDS = 300.0


def tried(config: RunConfig) -> Sizes:
    """Sizes of what a configuration's loop moves. Takes seconds.

    Raises:
        ConfigError: it can't be tried; says why.
    """
    return Sizes(**_ask(_question(config, timed=False))["sizes"])


def timed(config: RunConfig, client: Client | None) -> tuple[Sizes, PartSeconds]:
    """The same, and what the parts of a round took: on a worker of a cluster that learns, or on this machine.

    Raises:
        ConfigError: it can't be tried; says why.
        GangRefusedError: no worker of the cluster learns.
    """
    question = _question(config, timed=True)
    found = _ask(question) if client is None else _ask_worker(client, question)
    return Sizes(**found["sizes"]), PartSeconds(**found["parts"])


def _question(config: RunConfig, *, timed: bool) -> dict[str, Any]:
    return {"config": config.model_dump(mode="json", exclude={"store", "cluster"}), "timed": timed}


def _ask_worker(client: Client, question: dict[str, Any]) -> dict[str, Any]:
    try:
        future = client.submit(_ask, question, resources={"learner": 1}, pure=False, key=f"calibrate {uuid4().hex}")
        found: dict[str, Any] = future.result(timeout=_SECONDS)
    except TimeoutError:
        raise GangRefusedError(
            f"no worker with the resource learner=1 tried the configuration within {_SECONDS:g} s; start one with "
            f"`--resources learner=1`, or choose a placement.policy"
        ) from None
    return found


def _ask(question: dict[str, Any]) -> dict[str, Any]:
    try:
        # -P: nothing in the working directory can stand for one of our packages.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tasks.calibration"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"trying the configuration took more than {_SECONDS:g} s; a round of it is too large to be tried here"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise ConfigError(f"the configuration can't be tried: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    if "error" in found:
        raise ConfigError(found["error"])
    return found
