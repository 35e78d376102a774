"""Asks another process to try a configuration; the process that drives a run imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError
from tasks.cost import Sizes

if TYPE_CHECKING:
    from tasks.config import RunConfig

_SECONDS = 300.0


def sizes(config: RunConfig) -> Sizes:
    """Sizes of what a configuration's loop moves. Takes seconds.

    Raises:
        ConfigError: it can't be tried; says why.
    """
    return Sizes(**_ask(config)["sizes"])


def _ask(config: RunConfig) -> dict[str, Any]:
    question = json.dumps(config.model_dump(mode="json", exclude={"store", "cluster"}))
    try:
        # -P: nothing in the working directory can stand for one of our packages.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tasks.calibration"],
            input=question,
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
