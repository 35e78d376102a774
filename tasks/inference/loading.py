"""Finds a run's snapshot and loads it as a policy."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from penstock.storage.runs.run import open_run
from penstock.tasks.analysis.evaluation import observer_context
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.inference.finding import find_snapshot
from penstock.tasks.inference.policy import Origin, Policy
from penstock.tasks.setup.config.consent import record_consent

if TYPE_CHECKING:
    from penstock.tasks.inference.finding import Version


def load_policy(
    run: str,
    version: Version = "newest",
    *,
    store: str | None = None,
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
        ConfigError: nothing is committed yet; the version is not named by a commit, or was removed by `penstock gc`; or
            none was evaluated.
        ConsentError: the run names code in the working directory, and is not trusted.
        CorruptObjectError: the snapshot was altered or cut short.
    """
    folder = open_run(run, store)
    if trust:
        record_consent(folder)
    commit, ref = find_snapshot(folder, version)
    context = observer_context(folder, commit.stage)
    params = load_snapshot(context.cache.get_buffer(folder.store, ref), ref)
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


def load_newer(policy: Policy) -> Policy | None:
    """Load the run's newest policy if it is not this one, which takes a few small reads; errors as `load_policy`."""
    origin = policy.origin
    _, ref = find_snapshot(open_run(origin.run, origin.store), "newest")
    if ref.digest == origin.digest:
        return None
    # Another seed for each version, so that sampled actions do not begin with the same noise again.
    return load_policy(origin.run, ref.version, store=origin.store, device=str(policy.device), seed=ref.version)
