"""Finds a run's snapshot and loads it as a policy."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import open_run
from penstock.tasks.analysis.evaluation import observer_context
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.inference.finding import find_snapshot
from penstock.tasks.inference.policy import Origin, Policy
from penstock.tasks.setup.config.consent import record_consent
from penstock.tasks.setup.config.custom_algorithm import CustomAlgorithmSettings

if TYPE_CHECKING:
    import os

    from penstock.tasks.inference.finding import Version
    from penstock.tasks.specs import Params


def load_policy(
    run: str | os.PathLike[str],
    version: Version = "newest",
    *,
    store: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust: bool = False,
) -> Policy:
    """Load the policy of a run, to act with it. Neither Prefect nor Dask is imported.

    Args:
        run: folder or s3:// address of the run, such as `runs/cartpole-1`; or its name, which is looked up in `store`.
        version: `newest`, `best` (the highest mean return among the run's evaluations; of equal ones the newest), or
            the version of a snapshot that a commit names.
        store: folder or s3:// address that holds the run, if `run` is its name; default `runs`.
        device: torch device of the network.
        seed: selects the random numbers of sampled actions.
        trust: import the code that the run names, also where Python finds it in the working directory.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: nothing is committed yet; the version is not named by a commit, or was removed by `penstock gc`;
            none was evaluated; its parameters are not finite; or the device is not there, or the seed no number below
            2**63.
        ConsentError: the run names code in the working directory, and is not trusted.
        CorruptObjectError: the snapshot was altered or cut short.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed is {seed!r}, expected a whole number from 0 to {(1 << 63) - 1}")
    require_device(device)
    folder = open_run(run, store)
    if trust:
        record_consent(folder)
    commit, ref = find_snapshot(folder, version)
    context = observer_context(folder, commit.stage)
    params = load_snapshot(context.cache.get_buffer(folder.store, ref), ref)
    custom = isinstance(context.config.algorithm, CustomAlgorithmSettings)
    _require_finite(params, f"version {ref.version} of run '{folder.name}'", infinite=custom)
    with closing(context.make_pool(1)) as pool:
        spaces = pool.single_observation_space, pool.own_action_space
    return Policy(
        context.algorithm,
        context.environment,
        params,
        observation_space=spaces[0],
        action_space=spaces[1],
        origin=Origin(folder.root.url, folder.name, ref.version, commit.stage, commit.env_steps, ref.digest),
        settings=folder.load("config")["config"],
        device=device,
        seed=seed,
    )


def require_device(device: str) -> None:
    """Raise ConfigError if torch has no such device here."""
    try:
        torch.empty(0, device=torch.device(device))
    except (RuntimeError, AssertionError, TypeError) as error:  # the second where torch was compiled without
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"device '{device}': torch has none of that name here ({reason}); choose cpu") from error


def _require_finite(params: Params, version: str, *, infinite: bool) -> None:
    """Refuse parameters from which every network computes some action; those of a custom algorithm may be infinite."""
    for group, named in params.items():
        for name, tensor in named.items():
            broken = torch.isnan(tensor) if infinite else ~torch.isfinite(tensor)
            if count := int(broken.sum()):
                raise ConfigError(
                    f"{version} has parameters that are not finite, {count} of {tensor.numel()} in {group}.{name}, so "
                    f"its actions may mean nothing: its run diverged; choose an earlier version, if there is one"
                )


def load_newer(policy: Policy) -> Policy | None:
    """Load the run's newest policy if it is not this one, which takes a few small reads.

    Raises:
        ConfigError: another run has taken the run's name; or as `load_policy`, whose other errors are raised too.
    """
    origin = policy.origin
    folder = open_run(origin.run, origin.store)
    _, ref = find_snapshot(folder, "newest")
    if ref.digest == origin.digest:
        return None
    if folder.load("config")["config"] != policy.settings:
        raise ConfigError(
            f"another run has taken the name '{origin.run}' in {origin.store}, with other settings: version "
            f"{origin.version} of the first one acts on; load the policy again for the other"
        )
    # Another seed for each version, so that sampled actions do not begin with the same noise again.
    return load_policy(origin.run, ref.version, store=origin.store, device=str(policy.device), seed=ref.version)
