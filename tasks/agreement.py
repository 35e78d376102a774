"""Before a commit: what was learned from is what is stored.

A learner may read a shard from its node's cache before it is stored. If the act task died meanwhile and acting again
gave other bytes, the learner's shard is nowhere: no commit may name it.

And all members had one text of the algorithm; hosts that were brought up to date at different times would otherwise
train something that neither version is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError, StageMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def check_agreement(
    stage: int, learned: Iterable[Mapping[str, Any]], acted: Iterable[Mapping[str, Any]], *, whole: bool = True
) -> None:
    """Compare the shards of both sides.

    Args:
        stage: for the error.
        learned: references of the shards that were learned from.
        acted: what act tasks returned; `shards` has the digests of what is stored, by tile in order of rounds.
        whole: whether all that is stored must have been learned from; otherwise, all that was learned from is stored.

    Raises:
        StageMismatchError: they differ.
    """
    stored = {int(tile): digests for result in acted for tile, digests in result["shards"].items()}
    used: dict[int, list[str]] = {}
    for ref in sorted(learned, key=lambda ref: int(ref["round"])):
        used.setdefault(ref["tile"], []).append(ref["digest"])
    if not whole:
        stored = {tile: [found for found in stored.get(tile, []) if found in digests] for tile, digests in used.items()}
    if used != stored:
        tiles = sorted(tile for tile in {*used, *stored} if used.get(tile) != stored.get(tile))
        raise StageMismatchError(
            f"stage {stage}: what was learned from is not what is stored of the tiles {tiles}; a round that was acted "
            f"again gave other bytes, but a stage must be a deterministic function of the commit before it. This "
            f"attempt is given up and the stage starts again"
        )


def check_sources(stage: int, sources: Mapping[str, str]) -> None:
    """See that all members played the algorithm from the same text.

    Args:
        stage: for the error.
        sources: what `tasks.algorithm_source` gave, by member.

    Raises:
        ConfigError: they differ; names who had what.
    """
    members: dict[str, list[str]] = {}
    for member, source in sorted(sources.items()):
        members.setdefault(source, []).append(member)
    if len(members) > 1:
        found = "; ".join(f"{', '.join(names)}: {source}" for source, names in members.items())
        raise ConfigError(
            f"stage {stage} is not committed: its members had different versions of the algorithm ({found}), expected "
            f"one. Install the same version of Penstock on all hosts, start their Dask workers anew, and resume"
        )
