"""Merges the results of a gang's members: N learners' sums become what one learner would have returned."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError, DivergedError, StageMismatchError
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.continuing.extensions import Limits, end_reason
from penstock.storage.runs.timings import EdgeCount, ProcessUsage
from penstock.tasks.driver.early_stopping import stop_reason
from penstock.tasks.runtime.results import ActResult, EnvResult, LearnResult, ServerResult

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from penstock.storage.refs import ShardRef, SnapshotRef
    from penstock.tasks.runtime.results import ComponentResult, MemberResult, Published
    from penstock.tasks.setup.config.environment import LeagueSettings
    from penstock.tasks.setup.config.replay import ReplaySchedule
    from penstock.tasks.setup.config.run import ScheduleSettings

_SHOWN_METRICS = 4


@dataclass(frozen=True, slots=True)
class GangResults:
    """The results of all members by component, each in the order of the members."""

    act: tuple[ActResult, ...] = ()
    env: tuple[EnvResult, ...] = ()
    learn: tuple[LearnResult, ...] = ()
    server: tuple[ServerResult, ...] = ()

    @property
    def every(self) -> tuple[ComponentResult, ...]:
        """Return all results."""
        return (*self.act, *self.env, *self.learn, *self.server)


@dataclass(frozen=True, slots=True)
class Learned:
    """One learned stage."""

    shards: tuple[ShardRef, ...]
    """By round and tile."""
    published: Published
    metrics: dict[str, float]
    episodes: int
    env_steps: int


def by_component(results: Iterable[MemberResult]) -> GangResults:
    """Return members' results by component."""
    every = [one for result in results for one in result.components]
    return GangResults(
        act=tuple(one for one in every if isinstance(one, ActResult)),
        env=tuple(one for one in every if isinstance(one, EnvResult)),
        learn=tuple(one for one in every if isinstance(one, LearnResult)),
        server=tuple(one for one in every if isinstance(one, ServerResult)),
    )


def sum_edges(results: GangResults) -> dict[str, EdgeCount]:
    """Return the bytes and messages of every edge that members counted, over all members."""
    edges: dict[str, EdgeCount] = {}
    for result in results.every:
        for edge, counts in result.times.edges.items():
            before = edges.get(edge, EdgeCount(0, 0))
            edges[edge] = EdgeCount(before.bytes + counts.bytes, before.rounds + counts.rounds)
    return edges


def usage_by_process(usages: Iterable[tuple[Hashable, ProcessUsage]]) -> tuple[ProcessUsage, ...]:
    """Return the usage of each process once, in the order of its first member.

    Args:
        usages: the usage that each member reported, with what identifies its process. Members that share a process
            each report all of it: the one that ran longest counts.
    """
    found: dict[Hashable, ProcessUsage] = {}
    for process, usage in sorted(usages, key=lambda one: one[1].members):
        before = found.get(process)
        members = (*(before.members if before else ()), *usage.members)
        longest = usage if before is None or usage.seconds > before.seconds else before
        found[process] = replace(longest, members=members)
    return tuple(found.values())


def merge_learned(stage: int, results: GangResults, *, owners: bool = False) -> Learned:
    """Merge the parts of all learners, in the order of their tiles.

    Args:
        stage: for errors.
        results: of all members.
        owners: learners own agents, and so each learned all rows; otherwise each learned those of its tiles.

    Raises:
        StageMismatchError: members that synchronise ended with different parameters, or owners learned other shards.
    """
    learned = results.learn
    agreeing: tuple[LearnResult | ServerResult, ...] = (*learned, *results.server)
    digests = {part.times.member: part.parameters for part in agreeing}
    if len(set(digests.values())) > 1:
        raise StageMismatchError(
            f"stage {stage}: parameters differ after the same updates: "
            f"{', '.join(f'{member} has {digest}' for member, digest in digests.items())}; expected one digest. "
            f"Different kinds of machines may round differently: run these members on one kind. This attempt is given "
            f"up and the stage starts again"
        )
    (published,) = (part.published for part in agreeing if part.published is not None)
    metrics = _means(part.outputs for part in learned)
    if owners:
        if others := [part.times.member for part in learned if part.shards != learned[0].shards]:
            raise StageMismatchError(
                f"stage {stage}: {', '.join(others)} learned other shards than {learned[0].times.member}, expected the "
                f"same; a round that was acted again gave other bytes. This attempt is given up and the stage starts "
                f"again"
            )
        learned = learned[:1]
    episodes = sum(part.episodes for part in learned)
    if episodes:
        metrics["episode_return"] = sum(part.return_sum for part in learned) / episodes
        metrics["episode_length"] = sum(part.length_sum for part in learned) / episodes
    shards = (shard for part in learned for shard in part.shards)
    return Learned(
        shards=tuple(sorted(shards, key=lambda shard: (shard.round, shard.tile))),
        published=published,
        metrics=metrics,
        episodes=episodes,
        env_steps=sum(part.times.env_steps for part in learned),
    )


def _means(outputs: Iterable[Mapping[str, Mapping[int, tuple[float, int]]]]) -> dict[str, float]:
    """Return, for every row output, the mean over rounds of the mean over a round's rows."""
    rounds: dict[str, dict[int, list[tuple[float, int]]]] = {}
    for part in outputs:
        for name, by_round in part.items():
            for round_, (mean, count) in by_round.items():
                rounds.setdefault(name, {}).setdefault(round_, []).append((mean, count))
    means = {}
    for name, parts in rounds.items():
        values = [_mean(parts[round_]) for round_ in sorted(parts)]
        means[name] = sum(values) / len(values)
    return means


def _mean(parts: list[tuple[float, int]]) -> float:
    """Return the mean of means of some rows each; a single one stays the same to the last bit."""
    if len(parts) == 1:
        return parts[0][0]
    return sum(mean * count for mean, count in parts) / sum(count for _, count in parts)


def check_agreement(stage: int, learned: Iterable[ShardRef], acted: Iterable[ActResult], *, whole: bool = True) -> None:
    """Check that actors stored the shards that learners learned from.

    Args:
        stage: for the error.
        learned: the shards that were learned from.
        acted: the results of act components.
        whole: whether all that is stored must have been learned from; otherwise, all that was learned from is stored.

    Raises:
        StageMismatchError: they differ.
    """
    stored = {tile: list(digests) for result in acted for tile, digests in result.shards.items()}
    used: dict[int, list[str]] = {}
    for ref in sorted(learned, key=lambda ref: ref.round):
        used.setdefault(ref.tile, []).append(ref.digest)
    if not whole:
        stored = {tile: [found for found in stored.get(tile, []) if found in digests] for tile, digests in used.items()}
    if used != stored:
        tiles = sorted(tile for tile in {*used, *stored} if used.get(tile) != stored.get(tile))
        raise StageMismatchError(
            f"stage {stage}: for the tiles {tiles}, the shards that were learned from are not the stored ones; a round "
            f"that was acted again gave other bytes, but a stage must be a deterministic function of the commit before "
            f"it. This attempt is given up and the stage starts again"
        )


def check_sources(stage: int, sources: Mapping[str, str]) -> None:
    """Check that all members ran the algorithm from the same source.

    Args:
        stage: for the error.
        sources: the results of `penstock.tasks.model.algorithms.source_digest`, by member.

    Raises:
        ConfigError: they differ; names the members of each version.
    """
    members: dict[str, list[str]] = {}
    for member, source in sorted(sources.items()):
        members.setdefault(source, []).append(member)
    if len(members) > 1:
        found = "; ".join(f"{', '.join(names)}: {source}" for source, names in members.items())
        raise ConfigError(
            f"stage {stage} is not committed: its members had different versions of the algorithm ({found}), expected "
            f"one. Install the same version of Penstock on all hosts, restart their Dask workers, and resume the run"
        )


def league_after(
    settings: LeagueSettings, stage: int, before: Commit | None, newest: SnapshotRef
) -> tuple[SnapshotRef, ...] | None:
    """Return the older versions against which the stage after this one plays, the newest last.

    A function of the settings and the log alone: every `add_every_stages` stages the stage's last version is added, and
    the newest `size` of these stay.

    Args:
        settings: of the league.
        stage: that has ended.
        before: the commit before it.
        newest: the stage's last snapshot.

    Returns:
        None in a run without a league.
    """
    if settings.opponents != "league":
        return None
    members = (before.league or ()) if before else ()
    if (stage + 1) % settings.add_every_stages == 0:
        members = (*members, newest)
    return members[-settings.size :]


def stage_commit(
    schedule: ScheduleSettings | ReplaySchedule,
    stage: int,
    parent: str,
    before: Commit | None,
    learned: Learned,
    acted: Iterable[ActResult],
    evaluation: Mapping[str, float] | None,
    earlier_returns: Iterable[float] = (),
    league: tuple[SnapshotRef, ...] | None = None,
) -> Commit:
    """Return the commit of a stage.

    Args:
        schedule: of the run, with the limits of its newest extension.
        stage: that has ended.
        parent: digest of the commit before, or of what determines the run's bytes.
        before: the commit before; None at the first stage.
        learned: the merged results of its learners.
        acted: the results of its act components.
        evaluation: of its last snapshot, if there was one.
        earlier_returns: mean returns of the regular evaluations before it, for early stopping.
        league: the older snapshots against which the next stage plays; None without a league.

    Raises:
        DivergedError: a metric is not finite.
    """
    _require_finite(
        stage, {**learned.metrics, **{f"evaluation/{name}": one for name, one in (evaluation or {}).items()}}
    )
    stopped = None
    if evaluation and (stage + 1) % schedule.evaluate_every_stages == 0:
        stopped = stop_reason(schedule, [*earlier_returns, evaluation["mean_return"]])
    rounds = schedule.rounds_per_stage
    states = (state for result in acted for state in result.states)
    return Commit(
        stage=stage,
        parent=parent,
        rounds=(stage * rounds, (stage + 1) * rounds - 1),
        version=learned.published.version,
        env_steps=learned.env_steps + (before.env_steps if before else 0),
        episodes=learned.episodes + (before.episodes if before else 0),
        shards=learned.shards,
        states=tuple(sorted(states, key=lambda state: state.tile)),
        snapshots=learned.published.snapshots,
        checkpoint=learned.published.checkpoint,
        metrics=learned.metrics,
        evaluation=evaluation,
        finished=end_reason(Limits(schedule.max_stages, schedule.target_return), stage, evaluation, stopped),
        league=league,
    )


def _require_finite(stage: int, metrics: Mapping[str, object]) -> None:
    broken = [f"{name} is {value}" for name, value in metrics.items() if not _is_finite(value)]
    if broken:
        raise DivergedError.of(f"stage {stage} diverged: {', '.join(broken[:_SHOWN_METRICS])}, expected finite numbers")


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
