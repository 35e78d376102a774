"""Members of a host share its GPUs out without being told, and use NCCL only if each has its own."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.tasks.setup.distribution.gpus import VisibleGpus, backend_of, device_indices

A, B = "10.0.0.1", "10.0.0.2"


def seen(host: str, *ids: str) -> dict[str, Any]:
    """Return what a member advertises, as JSON brings it."""
    described = VisibleGpus(host, ids).to_json()
    return {**described, "ids": [*described["ids"]]}


def workers(*each: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"worker-{number}": one for number, one in enumerate(each)}


BOTH = seen(A, "a", "b")


@pytest.mark.parametrize(
    ("members", "indices", "backend"),
    [
        # All see both: each takes its own, or they share evenly.
        (workers(BOTH, BOTH), [0, 1], "nccl"),
        (workers(BOTH, BOTH, BOTH), [0, 1, 0], "gloo"),
        (workers(BOTH), [0], "nccl"),
        # One each, by CUDA_VISIBLE_DEVICES; or the same one for both.
        (workers(seen(A, "a"), seen(A, "b")), [0, 0], "nccl"),
        (workers(seen(A, "a"), seen(A, "a")), [0, 0], "gloo"),
        # In another order, or with different views.
        (workers(BOTH, seen(A, "b", "a")), [0, 0], "nccl"),
        (workers(seen(A, "b"), BOTH), [0, 0], "nccl"),
        (workers(BOTH, seen(A, "a")), [0, 0], "gloo"),
        # Two hosts, whose members are numbered in turn.
        (workers(BOTH, seen(B, "c", "d"), BOTH, seen(B, "c", "d")), [0, 0, 1, 1], "nccl"),
    ],
)
def test_each_member_takes_the_gpu_that_fewest_have(members: dict[str, Any], indices: list[int], backend: str):
    """The index is that of its own view; every member computes the same, in whatever order it heard of the others."""
    reverse = dict(reversed(members.items()))
    assert device_indices(members) == device_indices(reverse) == dict(zip(members, indices, strict=True))
    assert backend_of(members, members) == backend_of(members, reverse) == backend


def test_ten_members_are_counted_by_number():
    """`worker-10` comes after `worker-9`, so neighbours in rank are neighbours in GPUs."""
    eleven = workers(*[seen(A, *"abcdefghijk")] * 11)
    assert list(device_indices(eleven).values()) == list(range(11))


def test_a_member_without_a_gpu_keeps_all_at_gloo():
    """A parameter server on a CPU, or members that may not use one."""
    assert backend_of(["worker-0", "worker-1", "server-0"], workers(BOTH, BOTH)) == "gloo"
    assert backend_of(["worker-0", "worker-1"], {}) == "gloo"
    assert device_indices({}) == {}


def test_members_outside_of_the_group_take_gpus_too():
    """An actor with torch environments shares a GPU with a learner only if there are not enough."""
    members = {"act-0": BOTH, "learn-0": BOTH}
    assert device_indices(members) == {"act-0": 0, "learn-0": 1}
    assert backend_of(["learn-0"], members) == "nccl"
