"""Makes the trackers and callbacks that settings name; a mistake is refused before a run starts."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.flows.observers.callbacks.delivery import given_callbacks
from penstock.flows.observers.callbacks.loading import found_callback, in_one_line, load_callbacks
from penstock.flows.observers.tracking.outcome import OutcomeMaker
from penstock.flows.observers.tracking.wandb_mode import has_key, is_disabled, is_offline
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from penstock.flows.observers.callbacks.callback import Callback
    from penstock.tasks.setup.config.cluster import ClusterSettings

_FOLDER, _PROJECT = "tensorboard", "penstock"
"""TensorBoard's folder and W&B's project for trackers that name none."""
_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


def check_followers(cluster: ClusterSettings) -> None:
    """Check the trackers and callbacks of a run before its services start; callbacks are imported.

    Raises:
        ConfigError: a package or an address is missing, or a callback can't be imported.
    """
    for tracker in cluster.track:
        _check_tracker(tracker)
    for name in cluster.callbacks:
        found_callback(name)


def open_followers(cluster: ClusterSettings) -> list[Callback]:
    """Return a run's callbacks: its trackers, those that its settings name, and those of `use_callbacks`.

    Raises:
        ConfigError: as `check_followers`, or a callback can't be made.
    """
    check_followers(cluster)
    outcomes = OutcomeMaker(cluster.callback_seconds)
    first: dict[tuple[str, str], str] = {}
    for tracker in cluster.track:
        first.setdefault(_place(tracker), tracker)
    wanted = [name for (kind, _), name in first.items() if kind != "wandb" or not is_disabled()]
    trackers = [_make(tracker, outcomes) for tracker in wanted]
    return [*trackers, *load_callbacks(cluster.callbacks), *given_callbacks()]


def _check_tracker(tracker: str) -> None:
    kind, _, where = tracker.partition(":")
    module = _MODULES.get(kind)
    if module is not None and find_spec(module) is None:
        raise ConfigError(f"tracker {tracker} needs a package: pip install 'penstock-rl[{kind}]'")
    if module is not None:
        try:
            import_module(module)
        except Exception as error:
            raise ConfigError(
                f"tracker {tracker}: importing {module} failed: {in_one_line(error)}; install it with what it needs: "
                f"pip install 'penstock-rl[{kind}]'"
            ) from error
    if kind == "tensorboard" and "://" in where:
        raise ConfigError(f"tracker {tracker}: expected a folder of this machine, such as tensorboard:logs")
    if kind == "wandb" and not (is_offline() or has_key()):
        raise ConfigError(
            f"tracker {tracker}: found no key for Weights & Biases; type `wandb login`, set WANDB_API_KEY, or set "
            f"WANDB_MODE=offline to write files that `wandb sync` sends later"
        )
    if kind == "mlflow":
        address = where or os.environ.get("MLFLOW_TRACKING_URI", "")
        if urlsplit(address).scheme not in {"http", "https"} or not urlsplit(address).hostname:
            raise ConfigError(
                f"tracker {kind}: expected the address of an MLflow server, as mlflow:http://HOST:5000 or in "
                f"MLFLOW_TRACKING_URI"
            )


def _place(tracker: str) -> tuple[str, str]:
    """Return the kind of a tracker and where it writes, the same however it was named."""
    kind, _, where = tracker.partition(":")
    if kind == "tensorboard":
        return kind, str(Path(where or _FOLDER).resolve())
    if kind == "wandb":
        return kind, where or _PROJECT
    return kind, (where or os.environ.get("MLFLOW_TRACKING_URI", "")).rstrip("/")


def _make(tracker: str, outcomes: OutcomeMaker) -> Callback:
    kind, _, where = tracker.partition(":")
    if kind == "tensorboard":
        from penstock.flows.observers.tracking.tensorboard import TensorBoardTracker  # noqa: PLC0415  (an extra)

        return TensorBoardTracker(kind, outcomes, where or _FOLDER)
    if kind == "wandb":
        from penstock.flows.observers.tracking.wandb import WandbTracker  # noqa: PLC0415  (an extra)

        return WandbTracker(kind, outcomes, where or _PROJECT)
    from penstock.flows.observers.tracking.mlflow import MlflowTracker  # noqa: PLC0415  (it alone needs httpx)

    return MlflowTracker(kind, outcomes, where or os.environ["MLFLOW_TRACKING_URI"])
