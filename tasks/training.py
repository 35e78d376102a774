"""A training run from the driver's seat: check everything, take the lease, then stage after stage.

The flow that uses this holds no logic; whoever drives (the command line, a schedule, a retry) gets the same checks.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from storage.cache import default_cache_folder
from storage.digest import canonical_json
from storage.errors import ConfigError, CorruptObjectError, SchedulerLostError
from storage.lease import acquire
from storage.run import RunFolder
from storage.store import open_store
from tasks.admission import shortages
from tasks.assignment import Assignment
from tasks.auto_policy import choose
from tasks.calibrate import timed
from tasks.cluster import connected, connected_to
from tasks.config import MOVABLE, PlacementSettings, RunConfig, merge
from tasks.environments import make_pool
from tasks.fingerprint import differences, fingerprint
from tasks.floorplan_blocks import with_digests
from tasks.own_probe import completed, own_files, source_of
from tasks.placement import check_clusters
from tasks.places import read_places
from tasks.policies import AUTO, unused_counts
from tasks.recovery import lost_schedulers
from tasks.replay_config import ReplayConfig, build_stored_config
from tasks.replay_plan import claimed, pin
from tasks.stage import StageDriver
from tasks.start import check_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage.store import Store
    from tasks.auto_policy import Choice
    from tasks.start import IfExists

logger = logging.getLogger(__name__)

FORMAT = "penstock-run/1"


@dataclass(frozen=True, slots=True)
class Training:
    """A run that this process drives, its lease held and its clusters connected."""

    config: RunConfig
    run: RunFolder
    driver: StageDriver
    newest: dict[str, Any] | None
    """The commit from which it goes on."""
    why: str | None = None
    """Why its policy was chosen, if that was left to us, now."""

    def stages(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Run what is left: a commit and its timings a stage, until a commit says that the run is finished.

        Raises:
            SchedulerLostError: a cluster's scheduler is gone; the run goes on when it is driven anew.
            PenstockError: a stage failed for good.
        """
        commit = self.newest
        while commit is None or commit["finished"] is None:
            try:
                commit, timings = self.driver.run_stage(commit, is_first=commit is self.newest)
            except Exception as error:
                lost = lost_schedulers(self.driver.clusters, error)
                if not lost:
                    raise
                raise SchedulerLostError(
                    f"run '{self.run.name}' lost the Dask scheduler at {' and '.join(lost)} ({type(error).__name__}). "
                    f"The last commit stands: start it and its workers, then `penstock resume {self.run.name}`"
                ) from error
            stage = timings["stage"]
            self.run.store.write(
                f"timings/{stage:08d}-{self.driver.template.generation:08d}.json", [canonical_json(timings)]
            )
            yield commit, timings


@contextmanager
def driving(config: RunConfig, if_exists: IfExists, on_event: Callable[[dict[str, Any]], None]) -> Iterator[Training]:
    """Drive a new run, or one that exists; leaves its tasks and its lease in order whatever happens inside.

    Args:
        config: of a new run; of one that exists only name, store, cluster and what of the placement is movable count.
        if_exists: whether an existing run is an error or goes on.
        on_event: gets members' progress and log events, in a thread of Dask's.

    Raises:
        PenstockError: the configuration is wrong, the store can't be written, the run exists, is finished, or is driven
            by another flow; or no cluster answers.
    """
    committed = check_start(config, if_exists)
    root = open_store(config.store)
    config, choice = _settled(root, config)
    run, config = _open_run(root, config, choice)
    lease = acquire(run.store, f"{socket.gethostname()}/{os.getpid()}", config.cluster.lease_seconds)
    try:
        newest = run.log.newest(committed)
        with connected(config) as clusters:
            policy = config.policy
            for name in unused_counts(config.placement):
                logger.warning(
                    "placement.%s = %d changes nothing: policy '%s' has no tasks that it counts",
                    name,
                    getattr(config.placement, name),
                    policy.name,
                )
            driver = StageDriver(
                config=config,
                run=run,
                policy=policy,
                clusters=clusters,
                lease=lease,
                genesis=run.genesis(),
                template=Assignment(
                    store=root.url,
                    run=run.name,
                    stage=0,
                    attempt=0,
                    generation=lease.generation,
                    gang="",
                    role="",
                    replica=0,
                    replicas=0,
                    task_run="",
                    cache_folder=config.cluster.cache_folder or default_cache_folder(),
                    cache_limit_bytes=config.cluster.cache_limit_bytes,
                    read_budget_bytes=config.cluster.read_budget_bytes,
                    window_budget_bytes=config.cluster.window_budget_bytes,
                    upload_threads=config.cluster.upload_threads,
                    upload_budget_bytes=config.cluster.upload_budget_bytes,
                    device=config.placement.device,
                    gang_seconds=config.cluster.gang_seconds,
                    own_files=own_files(config),
                ),
                on_event=on_event,
            )
            yield Training(config, run, driver, newest, choice.why if choice else None)
    finally:
        lease.release()


def _settled(root: Store, config: RunConfig) -> tuple[RunConfig, Choice | None]:
    """The configuration with a policy that was chosen, if that is left to us: of a run that goes on, its own."""
    if config.placement.policy != AUTO or config.placement.roles:
        return config, None
    run = RunFolder(root, str(config.name))
    if run.exists():
        placement = PlacementSettings.model_validate(run.load("config")["config"]["placement"])
        return config.model_copy(update={"placement": placement}), None
    config = completed(config)
    if config.cluster.scheduler:
        with connected_to(config.cluster.scheduler) as client:
            sizes, parts = timed(config, client)
            places = client.run_on_scheduler(read_places)
            choice = choose(config, sizes, parts, lambda policy: shortages(policy, places, "all"))
    else:
        sizes, parts = timed(config, None)
        choice = choose(config, sizes, parts, lambda _: [])
    return config.model_copy(update={"placement": choice.candidates[0].placement}), choice


def _open_run(root: Store, config: RunConfig, choice: Choice | None = None) -> tuple[RunFolder, RunConfig]:
    run = RunFolder(root, str(config.name))
    if run.exists():
        return run, with_digests(_stored_config(run, config))  # other bytes of its blocks are refused here
    if isinstance(config, ReplayConfig):
        with claimed(root, config):
            config, reads = pin(root, run, config)
            config = completed(config)
            run.create({**describe_run(config), **reads})
    else:
        config = with_digests(completed(config))
        run.create({**describe_run(config), **({"chosen": choice.to_json()} if choice else {})})
    return run, config


def describe_run(config: RunConfig) -> dict[str, Any]:
    """What `run.json` says of a new run."""
    return {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": config.model_dump(mode="json", exclude={"store", "cluster"}),
        "identity": config.identity(),
        "made_with": {**fingerprint(), **source_of(config)},
        "promise": _promise(config),
    }


def _promise(config: RunConfig) -> dict[str, Any]:
    if not config.acts:
        because = "the shards that it reads are pinned, deterministic kernels"
    elif config.waits_for_all:
        because = f"quorum 1.0, {_continuation(config)}, deterministic kernels"
    else:
        because = (
            f"quorum {config.placement.quorum:g}: which shards a round is learned from depends on which are there in "
            f"time. Within this run the stored choices are followed, so what was learned is learned again with the "
            f"same bytes; another run may choose otherwise. {_continuation(config)}"
        )
    where = "with the versions and instruction sets of made_with; on a GPU, with the same kind of GPU"
    return {"same_bytes": config.waits_for_all or not config.acts, "because": because, "where": where}


def _continuation(config: RunConfig) -> str:
    """How environments go on after a stage; said aloud where episodes are cut for it."""
    with closing(make_pool(config, 1)) as pool:
        if not pool.repeats_state:
            return "the environment saves its state"
    schedule = config.schedule
    logger.warning(
        "%s can't save its state: each stage (%d steps of every environment) begins with new episodes, and those under "
        "way at its end are learned from as far as they got; raise schedule.rounds_per_stage if episodes are longer",
        config.environment.id,
        schedule.rounds_per_stage * schedule.round_steps,
    )
    return "environments, which can't save their state, begin new episodes with each stage"


def _stored_config(run: RunFolder, config: RunConfig) -> RunConfig:
    """What was stored, with the given cluster and number of act tasks, which may change from one drive to the next."""
    description = run.load("config", "format", "identity", "made_with")
    if description["format"] != FORMAT:
        raise CorruptObjectError(
            f"run '{run.name}' has format {description['format']!r} in run.json, expected '{FORMAT}'; it was made "
            f"by another version of Penstock, resume it with that"
        )
    now = {"name": run.name, "store": config.store, "cluster": config.cluster.model_dump(mode="json")}
    movable = {"placement": {name: getattr(config.placement, name) for name in MOVABLE}}
    stored = build_stored_config(merge({**description["config"], **now}, movable))
    wanted, learners = config.placement, stored.placement.learn_tasks
    if "learn_tasks" in wanted.model_fields_set and wanted.learn_tasks != learners:
        raise ConfigError(
            f"placement.learn_tasks = {wanted.learn_tasks}: run '{run.name}' began with {learners}, and the number of "
            f"learners decides how sums of gradients are rounded; leave it out, or start another run"
        )
    changed = differences(description["made_with"], {**fingerprint(), **source_of(stored)})
    if changed:
        logger.warning("run=%s was made elsewhere, bytes may differ from here on: %s", run.name, "; ".join(changed))
    if stored.identity() != description["identity"]:
        raise CorruptObjectError(
            f"run.json of '{run.name}' was altered: its 'config' and 'identity' say different things. Restore it, or "
            f"start another run with the settings that you want"
        )
    check_clusters(stored.policy, stored.cluster)
    return stored
