"""Runs a calibration in another process, since the process that drives a run imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import uuid4

from penstock.storage.errors import ConfigError, GangRefusedError
from penstock.tasks.setup.planning.round_time import PartSeconds
from penstock.tasks.setup.planning.traffic import Sizes

if TYPE_CHECKING:
    from distributed import Client

    from penstock.tasks.setup.config.run import RunConfig

_TIMEOUT_SECONDS = 300.0


class CalibrationRequest(TypedDict):
    """The input of the calibration process, as JSON."""

    config: dict[str, Any]
    """Settings of the run, without store and cluster."""
    timed: bool


class CalibrationResult(TypedDict):
    """The output of the calibration process, as JSON; a mistake in the settings is `{"error": message}` instead."""

    sizes: dict[str, int]
    """Fields of `Sizes`."""
    parts: dict[str, Any] | None
    """Fields of `PartSeconds`; None unless the request is timed."""


def measure_sizes(config: RunConfig) -> Sizes:
    """Return the sizes of the messages of a round. Takes seconds.

    Raises:
        ConfigError: the configuration can't be tried; says why.
    """
    return Sizes(**_run_process(_request(config, timed=False))["sizes"])


def measure_parts(config: RunConfig, client: Client | None) -> tuple[Sizes, PartSeconds]:
    """Return the sizes, and the seconds of the parts of a round.

    Args:
        config: The run's settings.
        client: Of the cluster, on one of whose learner workers the parts are timed; None times them on this machine.

    Raises:
        ConfigError: the configuration can't be tried; says why.
        GangRefusedError: no worker of the cluster has the resource `learner`.
    """
    request = _request(config, timed=True)
    result = _run_process(request) if client is None else _run_on_worker(client, request)
    return Sizes(**result["sizes"]), PartSeconds(**(result["parts"] or {}))


def _request(config: RunConfig, *, timed: bool) -> CalibrationRequest:
    return {"config": config.model_dump(mode="json", exclude={"store", "cluster"}), "timed": timed}


def _run_on_worker(client: Client, request: CalibrationRequest) -> CalibrationResult:
    try:
        future = client.submit(
            _run_process, request, resources={"learner": 1}, pure=False, key=f"calibrate {uuid4().hex}"
        )
        result: CalibrationResult = future.result(timeout=_TIMEOUT_SECONDS)
    except TimeoutError:
        raise GangRefusedError(
            f"no worker with the resource learner=1 finished the trial of the configuration within "
            f"{_TIMEOUT_SECONDS:g} s; start one with `--resources learner=1`, or choose a distribution.policy"
        ) from None
    return result


def _run_process(request: CalibrationRequest) -> CalibrationResult:
    try:
        # -P: a file in the working directory must not shadow a package.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "penstock.tasks.setup.planning.calibration_process"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"the trial of the configuration took more than {_TIMEOUT_SECONDS:g} s; choose smaller rounds"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["the process ended without a message"])[-1]
        raise ConfigError(f"the configuration can't be tried: {last}")
    output = json.loads(done.stdout)
    if "error" in output:
        raise ConfigError(output["error"])
    result: CalibrationResult = output
    return result
