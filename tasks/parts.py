"""What a gang's members return, put together: several learners' parts become what one learner would have returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage.errors import StageMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def by_half(results: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Members' results by what was done, `act` or `learn`, each with the member's name and time."""
    halves: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        for half, part in result["halves"].items():
            member = {"member": result["member"], "task_seconds": result["task_seconds"]}
            halves.setdefault(half, []).append({**member, **part})
    return halves


def sum_edges(halves: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, int]]:
    """Of every edge that members counted, `bytes` and `rounds` (messages) over all members."""
    edges: dict[str, dict[str, int]] = {}
    for part in (part for parts in halves.values() for part in parts):
        for edge, counts in part.get("edges", {}).items():
            total = edges.setdefault(edge, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                total[name] += count
    return edges


def merge_learned(stage: int, halves: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """One learned stage: `shards`, `snapshots`, `checkpoint`, `version`, `metrics`, `episodes`, `env_steps`.

    Args:
        stage: for the error.
        halves: of `by_half`; learners in the order of their tiles.

    Raises:
        StageMismatchError: members that work in step ended with different parameters.
    """
    learned = halves["learn"]
    keepers = [part for part in (*learned, *halves.get("server", [])) if "checkpoint" in part]
    digests = {part["member"]: part["parameters"] for part in (*learned, *halves.get("server", []))}
    if len(set(digests.values())) > 1:
        raise StageMismatchError(
            f"stage {stage}: after learning in step, parameters differ: "
            f"{', '.join(f'{member} has {digest}' for member, digest in digests.items())}; they must be the same. "
            f"Members on unlike machines may round differently: place them alike. This attempt is given up and the "
            f"stage starts again"
        )
    (keeper,) = keepers
    episodes = sum(part["episodes"] for part in learned)
    metrics = _means(part["outputs"] for part in learned)
    if episodes:
        metrics["episode_return"] = sum(part["return_sum"] for part in learned) / episodes
        metrics["episode_length"] = sum(part["length_sum"] for part in learned) / episodes
    return {
        "shards": sorted(
            (shard for part in learned for shard in part["shards"]), key=lambda shard: (shard["round"], shard["tile"])
        ),
        "snapshots": keeper["snapshots"],
        "checkpoint": keeper["checkpoint"],
        "version": keeper["version"],
        "metrics": metrics,
        "episodes": episodes,
        "env_steps": sum(part["env_steps"] for part in learned),
    }


def _means(outputs: Iterable[Mapping[str, Mapping[str, tuple[float, int]]]]) -> dict[str, float]:
    """Of every row output, the mean over rounds of the mean over a round's rows."""
    rounds: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for part in outputs:
        for name, by_round in part.items():
            for round_, (mean, count) in by_round.items():
                rounds.setdefault(name, {}).setdefault(round_, []).append((mean, count))
    means = {}
    for name, parts in rounds.items():
        values = [_mean(parts[round_]) for round_ in sorted(parts, key=int)]
        means[name] = sum(values) / len(values)
    return means


def _mean(parts: list[tuple[float, int]]) -> float:
    """Of the means of some rows each; a lone one is what it is, to the last bit."""
    if len(parts) == 1:
        return parts[0][0]
    return sum(mean * count for mean, count in parts) / sum(count for _, count in parts)
