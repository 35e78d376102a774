"""Resolves a run before anything starts, so that a mistake costs a second and not a minute. Imports no torch.

Settings, store and policy are checked once; later steps take the `ResolvedRun` and repeat none of the checks.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from penstock.storage.errors import ConfigError, RunExistsError, RunFinishedError
from penstock.storage.runs.continuing.leftovers import refuse_leftovers
from penstock.storage.runs.lease import refuse_driven
from penstock.storage.runs.run import RUN, RunFolder
from penstock.storage.stores.open import open_store
from penstock.storage.stores.probe import probe
from penstock.storage.stores.reachable import require_endpoint
from penstock.tasks.data.replay.plan import require_rows
from penstock.tasks.environments.floorplan_blocks import require_whole_episodes
from penstock.tasks.environments.header import with_header
from penstock.tasks.setup.config.replay import ReplayConfig
from penstock.tasks.setup.distribution.policies import AUTO
from penstock.tasks.setup.planning.fence import check_fence
from penstock.tasks.setup.planning.initial_parameters import read_initial
from penstock.tasks.setup.planning.preflight import check_device, check_distribution, check_environment, check_reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.stores.protocol import Store
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.distribution.policies import DistributionPolicy

IfExists: TypeAlias = Literal["refuse", "resume"]

_already: list[ResolvedRun] = []


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """A run whose settings fit its environment, its store and its policy."""

    config: RunConfig
    if_exists: IfExists
    root: Store
    """The store that holds runs."""
    exists: bool
    newest_stage: int | None
    """The newest committed stage of a run that exists; None before its first commit."""
    policy: DistributionPolicy | None
    """None until a policy is chosen for `distribution.policy = "auto"`."""
    is_fenced: bool
    """True if the store lets only one of several flows write a commit; otherwise commits get copies."""
    description: str = ""
    """The digest of its description, which workers compare with theirs; empty until the run is opened."""

    @property
    def run(self) -> RunFolder:
        """The run's folder, which need not exist yet."""
        return RunFolder(self.root, str(self.config.name), is_fenced=self.is_fenced)

    def with_config(self, config: RunConfig) -> ResolvedRun:
        """Return the run with settings that were stored or completed, and the policy that they name."""
        return replace(self, config=config, policy=config.make_policy())


def resolve(config: RunConfig, if_exists: IfExists) -> ResolvedRun:
    """Check the configuration, the store, and that the run may start or resume.

    Within `already_resolved`, the first call with the same settings checks nothing again; a name may have been added.

    Raises:
        PenstockError: names the mistake and a remedy.
    """
    if _already:
        found = _already.pop()  # once: a later try must see the objects that the first one stored
        named = found.config.model_copy(update={"name": found.config.name or config.name})
        if named == config and found.if_exists == if_exists:
            return replace(found, config=named)
    config = with_header(config)
    is_auto = config.distribution.policy == AUTO and not config.distribution.roles
    policy = None if is_auto else check_distribution(config)
    root = open_store(config.store)
    require_endpoint(config.store)
    run = RunFolder(root, config.name) if config.name else None
    exists = run is not None and run.exists()
    if run is not None and exists and if_exists == "refuse":
        raise RunExistsError(
            f"run '{run.name}' is in {root.url} already; `{run.command('resume')}` resumes it, or choose another name"
        )
    check_device(config)
    unfit_if_new = check_environment(root, config)
    guarantees = probe(root)
    if run is None or not exists:
        if origin := getattr(config, "continues", None):
            raise ConfigError(
                f"continues = {origin!r}: Penstock sets this where a population copies a run; leave it out, or "
                f"start from another run's commit with `penstock fork`"
            )
        if unfit_if_new:
            raise ConfigError(unfit_if_new)
        if root.exists(RUN):
            raise ConfigError(
                f"store = '{root.url}' is the folder of a run, expected one that holds runs: leave the run's name out"
            )
        if run is not None:
            refuse_driven(run.store)
            refuse_leftovers(run)
        check_reach(config, policy)
        require_whole_episodes(config.environment)
        read_initial(config)
        if isinstance(config, ReplayConfig):
            require_rows(root, config)
        is_fenced = check_fence(root, guarantees, config, None)
        return ResolvedRun(config, if_exists, root, exists=False, newest_stage=None, policy=policy, is_fenced=is_fenced)
    newest = run.newest()
    if newest and newest.finished:
        raise RunFinishedError(
            f"run '{run.name}' is finished ({newest.finished}) with stage {newest.stage}; "
            f"`{run.command('extend', '--max-stages N')}` continues it, `{run.command('show')}` describes it"
        )
    refuse_driven(run.store)
    return ResolvedRun(
        config,
        if_exists,
        root,
        exists=True,
        newest_stage=newest.stage if newest else None,
        policy=policy,
        is_fenced=check_fence(root, guarantees, config, run),
    )


@contextmanager
def already_resolved(resolved: ResolvedRun) -> Iterator[None]:
    """Let `resolve` return `resolved` for the same settings: a flow receives settings, not a resolved run."""
    _already[:] = [resolved]
    try:
        yield
    finally:
        _already.clear()
