"""The evaluate role: measures a snapshot's return, acting greedily on seeds that training never used."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from penstock.storage.digest import canonical_json
from penstock.storage.errors import ConfigError, PenstockError, RunIdleError, StoreError
from penstock.storage.runs.continuing.extensions import extension_after
from penstock.storage.runs.reader_claims import reading
from penstock.storage.runs.run import digest_of_description
from penstock.tasks.data.replay.given_episodes import require_learned
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.run_context import load_context
from penstock.tasks.seeds import Purpose, environment_seeds
from penstock.tasks.setup.config.consent import require_consent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage.refs import SnapshotRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.protocol import Store
    from penstock.tasks.runtime.run_context import RunContext

_FOLDER = "evaluations/"
_FOLLOW_SECONDS = 1.0
"""Interval of polling for a new commit."""

_log = logging.getLogger(__name__)


def evaluate_snapshot(
    context: RunContext,
    store: Store,
    ref: SnapshotRef,
    episodes: int,
    key: int,
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return the mean return of `episodes` episodes with zero noise, one environment each.

    Args:
        context: the context of the run.
        store: the run's store.
        ref: reference to the snapshot.
        episodes: number of episodes.
        key: selects the set of seeds; the same key gives the same seeds and so the same result.
        check: called before each step; raises if the evaluation must end.

    Returns:
        `version`, `episodes`, `mean_return`, `min_return`, `max_return`, `mean_length`: all deterministic, and
        `seconds`, which is not. With several agents, a step's reward is the mean of theirs.
    """
    torch.set_num_threads(1)
    started = time.perf_counter()
    params = load_snapshot(context.cache.get_buffer(store, ref), ref)
    # Reset in the step that ends an episode: in its last state there may be no legal action.
    pool = make_pool(context.config, episodes, AutoresetMode.SAME_STEP)
    pool.reset_ids(environment_seeds(context.config.seed, Purpose.EVALUATION, key, env_ids=range(episodes)))
    noise = torch.zeros((episodes, *context.algorithm.noise.shape))
    carry = context.algorithm.initial_carry(episodes)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    running = np.ones(episodes, dtype=bool)
    observation = pool.observation
    with torch.inference_mode():
        while running.any():
            check()
            rows, carry = context.algorithm.act(params, carry, torch.from_numpy(observation), noise)
            observation, reward, terminated, truncated, _ = pool.step(rows["action"].numpy())
            team_reward = reward.mean(-1) if reward.ndim > 1 else reward
            returns += np.where(running, team_reward, 0.0)
            lengths += running
            running &= ~(terminated | truncated)
    return {
        "version": ref.version,
        "episodes": episodes,
        "mean_return": float(returns.mean()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "seconds": time.perf_counter() - started,
    }


def evaluate_commit(
    run: RunFolder, commit: Commit, episodes: int, key: int, *, keep_result: bool = True
) -> dict[str, float]:
    """Evaluate the last snapshot of a commit in this process, and store the result with the run.

    Args:
        run: a run.
        commit: one of its commits.
        episodes: number of episodes.
        key: selects the set of seeds.
        keep_result: fail if the result can't be stored; otherwise warn, as for an archive that is only read.

    Returns:
        The result of `evaluate_snapshot`, and `seeds`, which is `key`.

    Raises:
        ConfigError: the snapshot was removed, or the key is no int64 of 0 or more.
        PenstockError: a return is not finite.
        StoreError: the store can't be read or, with `keep_result`, written.
    """
    if not 0 <= key < 1 << 63:
        raise ConfigError(f"key = {key}: expected 0 to {(1 << 63) - 1}, which tables of evaluations can hold")
    snapshot = last_snapshot(run, commit)
    if not run.store.exists(snapshot.name):
        raise ConfigError(
            f"the snapshot of stage {commit.stage} of run '{run.name}' was removed, by `penstock gc` or by hand; the "
            f"newest commit's is always kept"
        )
    with reading(run.store, "evaluate", commit.stage, commit.stage, shards=False, optional=not keep_result):
        result = {
            **evaluate_snapshot(observer_context(run, commit.stage), run.store, snapshot, episodes, key),
            "seeds": key,
        }
    unusual = {name: value for name, value in result.items() if not math.isfinite(value)}
    if unusual:
        said = ", ".join(f"{name} is {value}" for name, value in unusual.items())
        raise PenstockError(
            f"the evaluation of stage {commit.stage} of run '{run.name}' is not kept: {said}, expected finite numbers; "
            f"check the rewards of {run.load('config')['config']['environment']['id']}"
        )
    try:
        # Durable: one that a power cut had emptied would count as made.
        run.store.write(_evaluation_name(snapshot, episodes, key), [canonical_json(result)], durable=True)
    except StoreError as error:
        if keep_result:
            raise
        _log.warning("the result is not kept with the run: %s", error)
    return result


def last_snapshot(run: RunFolder, commit: Commit) -> SnapshotRef:
    """Return the reference to the snapshot after a commit's last round.

    Raises:
        ConfigError: it has none, as the commits of runs whose episodes were imported or recorded.
    """
    require_learned(run, commit)
    return commit.snapshots[-1]


def observer_context(run: RunFolder, stage: int) -> RunContext:
    """Return the context of a run for an observer that is not a member; errors as `require_consent`, `load_context`."""
    description = digest_of_description(require_consent(run))
    return load_context(
        Assignment(
            store=run.root.url,
            run=run.name,
            description=description,
            stage=stage,
            attempt=0,
            generation=0,
            gang="",
            role="evaluate",
            replica=0,
            replicas=1,
            task_run="",
            cache_folder="",
            device="cpu",
        )
    )


def evaluation_order(
    run: RunFolder, episodes: int, key: int, idle_seconds: float | None
) -> Iterator[tuple[Commit, range]]:
    """Yield commits as `commits_to_evaluate`; without `idle_seconds` as `newest_to_evaluate`."""
    if idle_seconds is None:
        yield from newest_to_evaluate(run, episodes, key)
        return
    for commit in commits_to_evaluate(run, episodes, key, idle_seconds):
        yield commit, range(0)


def newest_to_evaluate(run: RunFolder, episodes: int, key: int) -> Iterator[tuple[Commit, range]]:
    """Yield the newest commit until it has an evaluation, and again if another one appeared meanwhile.

    An evaluation that takes longer than a stage so never falls behind: versions between are left out.

    Yields:
        The commit, and the versions after the last evaluated one and before the commit's that are left out.

    Raises:
        RunNotFoundError: the run does not exist.
    """
    run.load()
    before: int | None = None
    while (newest := run.log.newest(before)) is not None and newest.stage != before:
        before, snapshot = newest.stage, last_snapshot(run, newest)
        of_seeds = f"-{key}-{episodes}.json"
        names = [name for name in run.store.list(_FOLDER) if name.endswith(of_seeds)]
        numbers = [name.removeprefix(_FOLDER).split("-")[0] for name in names]
        evaluated = [int(number) for number in numbers if number.isascii() and number.isdigit()]
        if snapshot.version in evaluated or not run.store.exists(snapshot.name):
            return
        last = max((version for version in evaluated if version < snapshot.version), default=0)
        yield newest, range(last + 1, snapshot.version)


def commits_to_evaluate(run: RunFolder, episodes: int, key: int, idle_seconds: float) -> Iterator[Commit]:
    """Yield each commit as it appears, until the run is finished.

    Snapshots that were evaluated before with the same seeds are left out, so following may be stopped and started at
    any time; so are those that `penstock gc` has removed. The run's end is decided by its own evaluations, inside its
    stages.

    Raises:
        RunNotFoundError: the run does not exist.
        RunIdleError: it is not finished, and nothing was committed for `idle_seconds` after the newest evaluation.
    """
    run.load()
    stage, newest = 0, run.log.newest()
    idle_since = time.monotonic()
    while True:
        while newest is not None and stage <= newest.stage:
            commit = run.log.read(stage)
            snapshot = last_snapshot(run, commit)
            done = run.store.exists(_evaluation_name(snapshot, episodes, key))
            if not done and run.store.exists(snapshot.name):
                yield commit
            stage += 1
            idle_since = time.monotonic()
        if newest is not None and newest.finished and extension_after(run.store, newest) is None:
            return
        if time.monotonic() - idle_since >= idle_seconds:
            committed = "nothing" if newest is None else f"nothing after stage {newest.stage}"
            raise RunIdleError(
                f"run '{run.name}' has committed {committed} for {idle_seconds:g} s and is not finished; "
                f"`{run.command('resume')}` resumes it if no flow drives it, --idle-seconds extends the wait for a "
                f"slow run"
            )
        time.sleep(min(_FOLLOW_SECONDS, idle_seconds))
        newest = run.log.newest(newest.stage if newest else None)


def _evaluation_name(snapshot: SnapshotRef, episodes: int, key: int) -> str:
    return f"{_FOLDER}{snapshot.version:08d}-{key}-{episodes}.json"
