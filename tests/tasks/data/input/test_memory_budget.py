"""A learner's budget: shared out so that all of it counts, and too small a one is said once, by its setting."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from penstock.storage.transfer.ranged_reads import PART_BYTES
from penstock.tasks.data.input.memory_budget import BUDGET_BYTES, enough_bytes, read_budget_bytes, share_out
from penstock.tasks.runtime.assignment import Assignment

MIB = 1 << 20
LOG = logging.getLogger("a-learner")


def assignment(store: str, budget_bytes: int | None = None) -> Assignment:
    return Assignment(
        store=store,
        run="a-run",
        stage=0,
        attempt=0,
        generation=1,
        gang="",
        role="learn",
        replica=0,
        replicas=2,
        task_run="",
        cache_folder="",
        device="cpu",
        read_budget_bytes=budget_bytes,
    )


@pytest.mark.parametrize("is_staged", [False, True], ids=["mapped", "staged"])
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("budget_bytes", [MIB, 3 * MIB, 5 * MIB, 31 * MIB, 100 * MIB, BUDGET_BYTES, 1 << 33])
def test_a_budget_is_shared_out_and_never_exceeded(budget_bytes, is_remote, is_staged):
    """Shards, their copies and the parts on their way together; at least three quarters are for shards."""
    shares = share_out(budget_bytes, PART_BYTES, is_remote=is_remote, is_staged=is_staged)
    shards = shares.held_bytes * (2 if is_staged else 1)
    parts = shares.part_bytes * shares.in_flight if is_remote else 0
    assert shards + parts <= budget_bytes
    assert shards >= 3 * budget_bytes // 4 - 1


@pytest.mark.parametrize("is_staged", [False, True], ids=["mapped", "staged"])
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("held_bytes", [1, MIB - 1, 7 * MIB + 3, 60 * MIB, 192 * MIB, 193 * MIB, 1 << 33])
def test_what_would_be_enough_is_enough(held_bytes, is_remote, is_staged):
    """A budget of that size has room for these shards, and for not much more."""
    budget_bytes = enough_bytes(held_bytes, is_remote=is_remote, is_staged=is_staged)
    shares = share_out(budget_bytes, PART_BYTES, is_remote=is_remote, is_staged=is_staged)
    assert shares.held_bytes >= held_bytes
    assert budget_bytes <= max(MIB, held_bytes * (2 if is_staged else 1) * 4 // 3 + 1)


def test_nothing_that_is_set_gets_the_default_or_what_two_rounds_need(tmp_path, caplog):
    """And nothing is said."""
    place = assignment(str(tmp_path))
    assert read_budget_bytes(place, LOG, 10, is_remote=False, is_staged=False) == BUDGET_BYTES
    assert read_budget_bytes(place, LOG, 1 << 30, is_remote=False, is_staged=False) == 1 << 30
    assert not caplog.records


def test_too_small_a_budget_is_said_once_and_kept_to(tmp_path, caplog):
    """By the setting's name, what it is and what would be enough; again only for another drive of the run."""
    place = assignment(str(tmp_path), 2 * MIB)
    for stage in range(3):
        for replica in range(2):
            part = replace(place, stage=stage, replica=replica)
            assert read_budget_bytes(part, LOG, 3 * MIB, is_remote=False, is_staged=False) == 2 * MIB
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for part in ("cluster.read_budget_bytes", str(2 * MIB), str(3 * MIB)):
        assert part in record.getMessage()
    read_budget_bytes(replace(place, generation=2), LOG, 3 * MIB, is_remote=False, is_staged=False)
    assert len(caplog.records) == 2


def test_a_budget_that_is_enough_is_not_remarked_on(tmp_path, caplog):
    """Up to the byte."""
    place = assignment(str(tmp_path), 3 * MIB)
    assert read_budget_bytes(place, LOG, 3 * MIB, is_remote=False, is_staged=False) == 3 * MIB
    assert not caplog.records
