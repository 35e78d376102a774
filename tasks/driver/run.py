"""Drives a training run: checks it, takes the lease, then runs stage after stage.

The flow that uses this holds no logic, so the command line, a schedule and a retry get the same checks.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import (
    ConfigError,
    CorruptObjectError,
    GangRefusedError,
    PenstockError,
    RunExistsError,
    SchedulerLostError,
)
from penstock.storage.runs.continuing.extensions import extension_after
from penstock.storage.runs.continuing.leftovers import refuse_leftovers
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.run import digest_of_description, stored_settings
from penstock.storage.runs.timings import encode_timings, timings_name
from penstock.tasks.data.replay.plan import claimed, pin
from penstock.tasks.driver.admission import shortages
from penstock.tasks.driver.cluster import connected, connected_to, require_penstock
from penstock.tasks.driver.open_stage import continue_from
from penstock.tasks.driver.recovery import lost_schedulers
from penstock.tasks.driver.stage import StageDriver
from penstock.tasks.driver.worker_slots import read_slots
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.floorplan_blocks import with_digests
from penstock.tasks.environments.header import header_compiler
from penstock.tasks.environments.model_files import with_model_digest
from penstock.tasks.environments.typed_settings import with_typed_settings
from penstock.tasks.model.algorithms.custom_probe import custom_files, custom_source, with_custom_defaults
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.fingerprint import differences, environment_packages, fingerprint, packages_again
from penstock.tasks.setup.config.consent import record_consent, require_consent
from penstock.tasks.setup.config.replay import ReplayConfig, build_stored_config
from penstock.tasks.setup.config.run import MOVABLE, RunConfig
from penstock.tasks.setup.config.without_effect import settings_without_effect
from penstock.tasks.setup.distribution.policies import AUTO
from penstock.tasks.setup.distribution.settings import DistributionSettings
from penstock.tasks.setup.planning.auto_policy import choose
from penstock.tasks.setup.planning.extending import with_extensions
from penstock.tasks.setup.planning.initial_parameters import keep_initial
from penstock.tasks.setup.planning.preflight import check_clusters, check_distribution
from penstock.tasks.setup.planning.run_calibration import measure_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.runs.timings import StageTimings
    from penstock.tasks.runtime.events import MemberEvent
    from penstock.tasks.setup.planning.auto_policy import Choice
    from penstock.tasks.setup.planning.resolve import ResolvedRun

logger = logging.getLogger(__name__)

FORMAT = "penstock-run/1"
_NEEDED = ("config", "format", "identity", "made_with")
"""Names that the description of a stored run must have for it to be driven."""


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run that this process drives; it holds the run's lease and is connected to its clusters."""

    config: RunConfig
    run: RunFolder
    driver: StageDriver
    newest: Commit | None
    """The commit from which it continues."""
    is_extended: bool = False
    """True if that commit ended the run, and the run was extended."""
    why: str | None = None
    """The reason for its policy, if Penstock has chosen it just now."""

    def stages(self) -> Iterator[tuple[Commit, StageTimings]]:
        """Run the remaining stages and yield the commit and timings of each, until a commit finishes the run.

        Raises:
            SchedulerLostError: a cluster's scheduler was lost; the run continues when it is driven again.
            PenstockError: a stage failed for good.
        """
        commit = self.newest
        while self._goes_on(commit):
            try:
                commit, timings = self.driver.run_stage(commit, is_first=commit is self.newest)
            except Exception as error:
                lost = lost_schedulers(self.driver.clusters, error)
                if not lost:
                    raise
                raise SchedulerLostError(
                    f"run '{self.run.name}' lost the Dask scheduler at {' and '.join(lost)} ({type(error).__name__}). "
                    f"The last commit is intact: start a scheduler and its workers, then "
                    f"`{self.run.command('resume')}`"
                ) from error
            name = timings_name(timings.stage, self.driver.template.generation)
            self.run.store.write(name, [encode_timings(timings)])
            yield commit, timings

    @contextmanager
    def started_ahead(self) -> Iterator[None]:
        """Let the members of the next stage work already; `stages`, called in this context, takes them over.

        It commits nothing. A gang that can't be gathered is left to `stages`, which tries again and raises the reason.
        """
        with ExitStack() as stack:
            if self._goes_on(self.newest):
                with suppress(PenstockError):
                    stack.enter_context(self.driver.started_ahead(self.newest))
            yield

    def _goes_on(self, commit: Commit | None) -> bool:
        """Return whether there is a stage after a commit."""
        return commit is None or commit.finished is None or (commit is self.newest and self.is_extended)


@contextmanager
def drive_run(resolved: ResolvedRun, on_event: Callable[[MemberEvent], None]) -> Iterator[ActiveRun]:
    """Drive a new or an existing run; stops its local workers and releases its lease when the context ends.

    Args:
        resolved: the checked run; for an existing run the stored settings apply, except for name, store, cluster and
            the movable part of distribution.
        on_event: called with members' progress and log events, in a thread of Dask.

    Raises:
        PenstockError: the run was created meanwhile, its stored settings can't be resumed, another flow drives it, or
            no cluster answers.
    """
    resolved, choice = resolve_auto_policy(resolved)
    # Before a new run is created: a fork or a copy to its name may be making it.
    lease = acquire(resolved.run.store, f"{socket.gethostname()}/{os.getpid()}", resolved.config.cluster.lease_seconds)
    try:
        resolved = open_run(resolved, choice)
        config, run, policy = resolved.config, resolved.run, resolved.policy
        assert policy is not None
        genesis = run.genesis()
        if genesis != digest(canonical_json(config.identity())):
            # Two flows created it at the same time, on a store that let both.
            raise RunExistsError(
                f"run '{run.name}' in {run.root.url} was created by another flow at the same time, with other "
                f"settings; choose another name"
            )
        newest = continue_from(run, resolved.newest_stage)
        is_extended = (
            newest is not None and newest.finished is not None and extension_after(run.store, newest) is not None
        )
        config = with_extensions(run, config, newest.stage + 1 if newest else 0)
        with connected(policy, config.cluster) as clusters:
            for line in settings_without_effect(config, local_store=run.store.path("any") is not None):
                logger.warning("%s", line)
            driver = StageDriver(
                config=config,
                run=run,
                policy=policy,
                clusters=clusters,
                lease=lease,
                genesis=genesis,
                template=_template(resolved, config, lease.generation),
                on_event=on_event,
            )
            yield ActiveRun(config, run, driver, newest, is_extended, choice.why if choice else None)
    finally:
        lease.release()


def _template(resolved: ResolvedRun, config: RunConfig, generation: int) -> Assignment:
    """Return the part that the assignments of all members share, in every stage of this drive."""
    cluster = config.cluster
    return Assignment(
        store=resolved.root.url,
        run=resolved.run.name,
        description=resolved.description,
        stage=0,
        attempt=0,
        generation=generation,
        gang="",
        role="",
        replica=0,
        replicas=0,
        task_run="",
        cache_folder=cluster.cache_folder or "",
        cache_limit_bytes=cluster.cache_limit_bytes,
        read_budget_bytes=cluster.read_budget_bytes,
        window_budget_bytes=cluster.window_budget_bytes,
        upload_threads=cluster.upload_threads,
        upload_budget_bytes=cluster.upload_budget_bytes,
        device=config.distribution.device,
        gang_seconds=cluster.gang_seconds,
        custom_files=custom_files(config),
    )


def resolve_auto_policy(resolved: ResolvedRun) -> tuple[ResolvedRun, Choice | None]:
    """Return the run with a chosen policy, if the choice was left to Penstock; an existing run keeps its own."""
    if resolved.policy is not None:
        return resolved, None
    config = resolved.config
    if resolved.exists:
        stored = stored_settings(resolved.run.load("config")["config"])
        distribution = DistributionSettings.model_validate(stored["distribution"])
        return resolved.with_config(config.model_copy(update={"distribution": distribution})), None
    config = with_custom_defaults(config)
    if config.cluster.scheduler:
        with connected_to(config.cluster.scheduler) as client:
            slots = client.run_on_scheduler(read_slots)
            learners = [worker["address"] for worker in slots if worker["all"].get("learner")]
            if not learners:
                raise GangRefusedError(
                    f"distribution.policy = '{AUTO}' tries the configuration on a worker with the resource learner=1, "
                    f"and the Dask scheduler at {config.cluster.scheduler} has none; start one with `--resources "
                    f"learner=1`, or choose a distribution.policy"
                )
            require_penstock(client, config.cluster.scheduler, learners)
            sizes, parts = measure_parts(config, client)
            choice = choose(config, sizes, parts, lambda policy: shortages(policy, slots, "all"))
    else:
        sizes, parts = measure_parts(config, None)
        choice = choose(config, sizes, parts, lambda _: [])
    chosen = config.model_copy(update={"distribution": choice.candidates[0].distribution})
    return resolved.with_config(chosen), choice


def open_run(resolved: ResolvedRun, choice: Choice | None = None) -> ResolvedRun:
    """Create a new run, or read the stored settings of one that exists; returns it with the settings that count."""
    run, config = resolved.run, resolved.config
    if resolved.exists:
        description = require_known_code(run, config)
        # This refuses blocks and models whose files have other bytes.
        stored = with_model_digest(with_digests(_stored_config(run, description, config)))
        return replace(resolved, description=digest_of_description(description)).with_config(stored)
    try:
        config = _create(resolved, choice)
    except RunExistsError:
        if resolved.if_exists != "resume":
            raise
        return open_run(replace(resolved, exists=True), choice)  # another flow has created it meanwhile
    with suppress(ConfigError):  # without a place to keep it, another command asks for it
        record_consent(run)
    return replace(resolved, description=run.description_digest()).with_config(config)


def _create(resolved: ResolvedRun, choice: Choice | None) -> RunConfig:
    """Create a run; returns its settings, with what is computed when it begins."""
    run, config = resolved.run, resolved.config
    refuse_leftovers(run)
    if isinstance(config, ReplayConfig):
        with claimed(resolved.root, config):
            config, reads = pin(resolved.root, run, config)
            config = with_custom_defaults(config)
            run.create({**describe_run(config), **reads})
    else:
        typed = with_typed_settings(config)
        config, origin = keep_initial(run, with_digests(with_model_digest(with_custom_defaults(typed))))
        run.create({**describe_run(config), **origin, **({"chosen": choice.to_json()} if choice else {})})
    return config


def require_known_code(run: RunFolder, given: RunConfig) -> dict[str, Any]:
    """Refuse a stored run that names other code than the settings which its user gave, unless the run is trusted.

    Returns:
        The description that was judged, as `require_consent`.

    Raises:
        ConsentError: as `require_consent`.
    """
    description = run.load(*_NEEDED)
    if _code(build_stored_config(description["config"])) != _code(given):
        return require_consent(run, *_NEEDED)
    return description


def _code(config: RunConfig) -> tuple[object, ...]:
    environment = config.environment
    return config.algorithm.name, environment.id, environment.header_text, environment.wrappers, environment.address


def describe_run(config: RunConfig) -> dict[str, object]:
    """Return the content of `run.json` for a new run."""
    return {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": config.model_dump(mode="json", exclude={"store", "cluster"}),
        "identity": config.identity(),
        "made_with": {**_software(config), **environment_packages(config)},
        "promise": _promise(config),
    }


def _software(config: RunConfig) -> dict[str, str]:
    return {**fingerprint(), **custom_source(config), **header_compiler(config)}


def _promise(config: RunConfig) -> dict[str, object]:
    if config.distribution.max_staleness is not None:
        because = (
            f"max_staleness {config.distribution.max_staleness}: the order in which gradients are applied depends on "
            f"which arrive first. Within this run the stored orders are followed, so what was published is learned "
            f"again with the same bytes; another run may have other orders. {_continuation(config)}"
        )
    elif not config.has_actors:
        because = "the shards that it reads are pinned, deterministic kernels"
    elif config.requires_full_round:
        because = f"quorum 1.0, {_continuation(config)}, deterministic kernels"
    else:
        because = (
            f"quorum {config.distribution.quorum:g}: which shards a round is learned from depends on which are there "
            f"in time. Within this run the stored choices are followed, so what was learned is learned again with the "
            f"same bytes; another run may choose otherwise. {_continuation(config)}"
        )
    where = "with the versions and instruction sets of made_with; on a GPU, with the same kind of GPU"
    return {"same_bytes": config.promises_same_bytes, "because": because, "where": where}


def _continuation(config: RunConfig) -> str:
    """Return how environments continue after a stage; logs warnings where episodes are cut, or may never end."""
    with closing(make_pool(config, 1)) as pool:
        if not pool.restores_by_replay:
            return "the environment saves its state"
        if pool.environment["max_episode_steps"] is None:
            logger.warning(
                "%s has no time limit: if a policy can keep an episode from ending, an evaluation never ends either; "
                "set environment.max_episode_steps",
                config.environment.id,
            )
    schedule = config.schedule
    logger.warning(
        "%s can't save its state: each stage (%d steps of every environment) begins with new episodes; its end cuts "
        "unfinished ones, whose steps are learned from; raise schedule.rounds_per_stage if episodes are longer",
        config.environment.id,
        schedule.rounds_per_stage * schedule.round_steps,
    )
    return "environments, which can't save their state, begin new episodes with each stage"


def _stored_config(run: RunFolder, description: Mapping[str, Any], config: RunConfig) -> RunConfig:
    """Return the settings that a run stores, with the given cluster, device and numbers of tasks: these may change."""
    if description["format"] != FORMAT:
        raise CorruptObjectError(
            f"run '{run.name}' has format {description['format']!r} in run.json, expected '{FORMAT}'; it was created "
            f"by another version of Penstock, resume it with that version"
        )
    now = {"name": run.name, "store": config.store, "cluster": config.cluster.model_dump(mode="json")}
    given = config.distribution
    # A flow run that names only the run has the defaults: fewer tasks, and a device that may compute other bytes.
    names = [name for name in MOVABLE if name in given.model_fields_set]
    movable = {"distribution": {name: getattr(given, name) for name in names}}
    stored = build_stored_config(description["config"], {**now, **movable})
    wanted, learners = config.distribution, stored.distribution.learn_tasks
    if "learn_tasks" in wanted.model_fields_set and wanted.learn_tasks != learners:
        raise ConfigError(
            f"distribution.learn_tasks = {wanted.learn_tasks}: run '{run.name}' was created with {learners}, and the "
            f"number of learners is part of a run, as it decides how sums of gradients are rounded; leave it out, or "
            f"start another run"
        )
    made_with = description["made_with"]
    changed = differences(made_with, {**_software(stored), **packages_again(made_with)})
    if changed:
        logger.warning(
            "run=%s was created with other software or hardware, bytes may differ from now on: %s",
            run.name,
            "; ".join(changed),
        )
    if stored.identity() != description["identity"]:
        raise CorruptObjectError(
            f"run.json of '{run.name}' was altered: its 'config' and 'identity' disagree. Restore it from a copy, or "
            f"start another run with the intended settings"
        )
    check_clusters(stored.make_policy(), stored.cluster)
    check_distribution(stored)
    return stored
