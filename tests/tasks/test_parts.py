"""Parts of several learners become what one would have returned; members that disagree are named."""

from __future__ import annotations

from typing import Any

import pytest

from storage.errors import StageMismatchError
from tasks.parts import by_half, merge_learned

KEPT = {"snapshots": ["s"], "checkpoint": "c", "version": 2}


def part(shards: list[tuple[int, int]], loss: dict[str, tuple[float, int]], returns: list[float]) -> dict[str, Any]:
    return {
        "shards": [{"round": round_, "tile": tile} for round_, tile in shards],
        "outputs": {"loss": loss},
        "episodes": len(returns),
        "return_sum": sum(returns),
        "length_sum": 10 * len(returns),
        "env_steps": 8 * len(shards),
        "parameters": "same",
    }


def results(*parts: dict[str, Any], half: str = "learn", role: str = "worker") -> list[dict[str, Any]]:
    return [
        {"member": f"{role}-{replica}", "task_seconds": 1.0, "halves": {half: values}}
        for replica, values in enumerate(parts)
    ]


FIRST = part([(0, 0), (1, 0)], {"0": (1.0, 1), "1": (5.0, 2)}, [3.0])
SECOND = part([(0, 1), (1, 1)], {"0": (4.0, 3)}, [6.0, 9.0])


def test_several_parts_become_one():
    """Shards by round and tile, means over rows and then over rounds, episodes of all."""
    merged = merge_learned(0, by_half(results(FIRST | KEPT, SECOND)))
    assert [(shard["round"], shard["tile"]) for shard in merged.pop("shards")] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    metrics = {"loss": (13.0 / 4 + 5.0) / 2, "episode_return": 6.0, "episode_length": 10.0}
    assert merged == {**KEPT, "metrics": metrics, "episodes": 3, "env_steps": 32}


def test_a_lone_learner_is_taken_at_its_word():
    """To the last bit: dividing a mean by what it was multiplied with would change it."""
    assert 0.1 * 3 / 3 != 0.1
    lone = part([(0, 0)], {"0": (0.1, 3)}, []) | KEPT
    assert merge_learned(0, by_half(results(lone)))["metrics"] == {"loss": 0.1}


def test_the_server_keeps_what_learners_have_not():
    """Snapshots and the checkpoint are those of whoever holds sync."""
    halves = by_half([*results(FIRST, SECOND), *results(KEPT | {"parameters": "same"}, half="server", role="server")])
    merged = merge_learned(0, halves)
    assert {name: merged[name] for name in KEPT} == KEPT


@pytest.mark.parametrize("other", ["worker-1", "server-0"])
def test_members_that_disagree_are_named(other):
    """A learner, or the server, that ended with other parameters than the rest: nothing is committed."""
    differing = {"parameters": "different"}
    server = results(
        KEPT | {"parameters": "same"} | (differing if other == "server-0" else {}), half="server", role="server"
    )
    learners = results(FIRST, SECOND | (differing if other == "worker-1" else {}))
    with pytest.raises(StageMismatchError, match=f"stage 4: .*parameters differ: .*{other} has different"):
        merge_learned(4, by_half([*learners, *server]))


def test_halves_keep_their_members_names():
    """Both halves of one member are found by what they did."""
    member = {"member": "worker-0", "task_seconds": 2.0, "halves": {"act": {"env_steps": 1}, "learn": {"rows": 3}}}
    times = {"member": "worker-0", "task_seconds": 2.0}
    assert by_half([member]) == {"act": [{**times, "env_steps": 1}], "learn": [{**times, "rows": 3}]}
