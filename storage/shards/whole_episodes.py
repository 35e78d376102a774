"""Reassembles whole episodes of a run from the shards that contain their parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from penstock.storage.shards.codec import Shard

_IDS = ("env_id", "episode_id")


@dataclass(frozen=True, slots=True)
class WholeEpisode:
    """A whole episode reaches from its first stored step to its last."""

    columns: dict[str, NDArray[Any]]
    """Arrays `[steps, ...]` by name."""
    last_observation: NDArray[Any]
    """The observation after the last step."""
    cut: bool
    """True if it did not end: the run ended first, or the environment was reset without an end."""


@dataclass(slots=True)
class _Open:
    """This episode has been read in part; its end has not."""

    parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    last_observation: NDArray[Any] | None = None
    may_lack_start: bool = False
    """Earlier shards, which are not read, may have its first steps."""


def whole_episodes(shards: Iterable[Shard], *, from_start: bool = True) -> Iterator[WholeEpisode]:
    """Yield episodes in the order of their ends, then those that did not end, by tile and environment.

    Memory holds one shard and, for each environment, the part of an open episode.

    Args:
        shards: in order of round, then tile, with all of their columns. Where a tile's shard is missing because it was
            too late to be learned from, episodes are cut.
        from_start: whether the first shards are the run's. Otherwise an environment's first episode may have begun
            before; it is left out unless it ends, and the shard that has its end says that all its steps were read.
            What a missing shard cuts off of it counts as an episode.
    """
    lanes: dict[tuple[int, int], _Open] = {}
    rounds: dict[int, int] = {}
    for shard in shards:
        steps, envs = shard.info.steps, shard.info.envs
        lacks = rounds.get(shard.info.tile, shard.info.round_before) != shard.info.round_before
        rounds[shard.info.tile] = shard.info.round
        after = dict(zip(shard.bootstrap_rows.tolist(), shard.bootstrap_observation, strict=True))
        ended = (shard.columns["terminated"] != 0) | (shard.columns["truncated"] != 0)
        lengths = dict(zip(shard.info.episodes.row.tolist(), shard.info.episodes.length.tolist(), strict=True))
        found: list[tuple[int, int, WholeEpisode]] = []
        for env in range(envs):
            lane = lanes.setdefault((shard.info.tile, env), _Open(may_lack_start=not from_start))
            start = 0
            for step in [*np.flatnonzero(ended[:, env]).tolist(), steps - 1]:
                if start > step:
                    continue
                part = {name: array[start : step + 1, env] for name, array in shard.columns.items()}
                if lane.parts and ((lacks and not start) or not _continues(lane.parts[-1], part)):
                    found += [(start, env, episode) for episode in _close(lane)]
                # An open part outlives the shard, whose memory may be reused.
                lane.parts.append(part if ended[step, env] else {name: np.array(value) for name, value in part.items()})
                lane.last_observation = np.array(after[step * envs + env])
                if ended[step, env]:
                    found += [(step, env, episode) for episode in _close(lane, lengths.get(step * envs + env, 0))]
                start = step + 1
        found.sort(key=lambda entry: entry[:2])
        yield from (episode for _, _, episode in found)
    for _, lane in sorted(lanes.items()):
        if lane.parts:
            yield from _close(lane)


def _continues(before: dict[str, NDArray[Any]], after: dict[str, NDArray[Any]]) -> bool:
    return all(before[name][-1] == after[name][0] for name in _IDS if name in before)


def _close(lane: _Open, length: int | None = None) -> list[WholeEpisode]:
    """Return the open episode, unless it may lack its start.

    Args:
        lane: the environment's.
        length: steps of the episode, if it has ended here; 0 if the shard does not say so. None: it was cut.
    """
    last, parts, may_lack_start = lane.last_observation, lane.parts, lane.may_lack_start
    assert last is not None
    lane.parts, lane.last_observation, lane.may_lack_start = [], None, False
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if may_lack_start and length != len(columns["reward"]):
        return []
    return [WholeEpisode(columns, last, length is None)]
