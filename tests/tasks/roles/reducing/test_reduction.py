"""Learners that each have some of the rows take the steps that one with all of them takes, and feel a peer's loss."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch

from penstock.storage.errors import GangError, MemberLostError, SpecMismatchError
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import gather_minibatches, rows_of, take_share
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.roles.reducing.reduction import (
    LocalReduction,
    ServerReduction,
    SummedReduction,
    awaited_from_first,
    copy_round_state,
    untrained_values,
)
from penstock.tasks.runtime import process_group
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.process_group import RENDEZVOUS_PORT, Group, Rendezvous
from penstock.tasks.setup.config.on_policy import PPOSettings

from ....support.algorithms.ppo_cases import CHOICES, random
from ....support.algorithms.ppo_cases import rows_of as acted_rows

HOST = "127.0.0.1"
PATIENCE_SECONDS = 150.0
ROWS = 40


class Present:
    """The part of a membership that a rendezvous uses: the first member's address, and whether to leave."""

    def __init__(self, port: int, reason: str = "") -> None:
        self.port = port
        self.reason = reason

    def host_of(self, member: str) -> str:
        return HOST

    def advertised(self, member: str, name: str) -> int:
        assert name == RENDEZVOUS_PORT
        return self.port

    def check(self) -> None:
        if self.reason:
            raise GangError(self.reason)


def assignment(gang_seconds: float = PATIENCE_SECONDS) -> Assignment:
    return Assignment(
        store="",
        run="",
        stage=0,
        attempt=0,
        gang="",
        generation=1,
        role="worker",
        replica=0,
        replicas=1,
        task_run="",
        cache_folder="",
        device="cpu",
        gang_seconds=gang_seconds,
    )


def meet(rank: int, size: int, members: Any, rendezvous: Rendezvous | None, seconds: float = PATIENCE_SECONDS) -> Group:
    return Group("test", rank, [f"worker-{index}" for index in range(size)], members, assignment(seconds), rendezvous)


def together(size: int, work: Any) -> list[Any]:
    """Return the results of `work(group)` for each member of a group, each in a thread."""
    rendezvous = Rendezvous(HOST, PATIENCE_SECONDS)

    def run(rank: int) -> Any:
        with meet(rank, size, Present(rendezvous.port), None if rank else rendezvous) as group:
            return work(rank, group)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "normalising"])
def ppo(request: pytest.FixtureRequest) -> PPO:
    normalize = {"normalize_observation": request.param, "normalize_reward": request.param}
    return PPO(PPOSettings(hidden=(8,), epochs=2, minibatches=5, **normalize), CHOICES)


def batch_of(ppo: PPO) -> dict[str, torch.Tensor]:
    return {**acted_rows(ppo, ppo.init(1), ROWS), "discounted_reward": random(ROWS, seed=9)}


def train(
    ppo: PPO, batch: dict[str, torch.Tensor], reduction: Any, plan: list[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Learn rows as a learner does; returns the parameters."""
    state = ppo.init(1)
    totals = reduction.stats(ppo.stats(batch))
    stats = {name: value.item() for name, value in totals.items() if not value.dim()}
    own, _ = reduction.share_of(len(batch["advantage"]))
    for minibatch, rows in gather_minibatches(partial(rows_of, batch), take_share(plan, own, ROWS), 16):
        count = len(minibatch.rows)
        for loss in ppo.losses:
            gradient, _ = minibatch_gradient(loss, state, rows, stats, 4096, count)
            with torch.no_grad():
                state = reduction.update(state, loss, gradient)
        state = reduction.after_minibatch(state)
    state = reduction.after_round(state, totals)
    return {name: group.flat.clone() for name, group in state.params.items()} | state.targets


def plan_of(ppo: PPO) -> list[torch.Tensor]:
    """Return minibatches of random rows, and a last one of which most learners have none."""
    return [*ppo.plan(torch.Generator().manual_seed(3), RoundWindow.of_round(ROWS)), torch.tensor([3, 1, 2])]


def share(batch: dict[str, torch.Tensor], rows: range) -> dict[str, torch.Tensor]:
    return {name: column[rows.start : rows.stop] for name, column in batch.items()}


def assigned(reduction: SummedReduction, rows: range, rows_in_all: int) -> SummedReduction:
    """Return the reduction with its rows of the round set."""
    reduction.assign(rows, rows_in_all)
    return reduction


SHARES = [(range(25), range(25, ROWS)), (range(10), range(10, 12), range(12, ROWS))]


@pytest.mark.parametrize("shares", SHARES, ids=["two", "three"])
def test_learners_that_add_up_take_the_steps_of_one(ppo, shares):
    """However unevenly rows are shared, also where a minibatch has none for some: the same parameters for all."""
    batch, plan = batch_of(ppo), plan_of(ppo)
    expected = train(ppo, batch, LocalReduction(ppo), plan)

    def work(rank: int, group: Group) -> Any:
        return train(ppo, share(batch, shares[rank]), assigned(SummedReduction(ppo, group), shares[rank], ROWS), plan)

    found = together(len(shares), work)
    for name, value in expected.items():
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-5)
        assert name not in ppo.init(1).params or not torch.equal(value, ppo.init(1).params[name].flat)
        assert all(torch.equal(other[name], found[0][name]) for other in found)


def test_a_server_takes_the_steps_of_one(ppo):
    """Two learners and a server: gradients go up, parameters come down, and all three have the same."""
    batch, plan, shares = batch_of(ppo), plan_of(ppo), SHARES[0]
    expected = train(ppo, batch, LocalReduction(ppo), plan)
    learners = Rendezvous(HOST, PATIENCE_SECONDS)

    def work(rank: int, server: Group) -> Any:
        if rank == 2:
            state = ppo.init(1)
            assert awaited_from_first(server) == ROWS
            for _ in plan:
                for loss in ppo.losses:
                    gradient = server.sum_at(2, torch.zeros_like(state.params[loss.group].flat))
                    state = ppo.update(state, loss, gradient)
                    server.copy_from(2, state.params[loss.group].flat)
                for value in untrained_values(ppo, state):
                    server.copy_from(2, value)
            copy_round_state(ppo, state, server)
            return {name: group.flat for name, group in state.params.items()} | state.targets
        with meet(rank, 2, Present(learners.port), None if rank else learners) as group:
            reduction = assigned(ServerReduction(ppo, group, server), shares[rank], ROWS)
            return train(ppo, share(batch, shares[rank]), reduction, plan)

    found = together(3, work)
    for name, value in expected.items():
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-5)
        assert all(torch.equal(other[name], found[0][name]) for other in found)


def test_sums_are_added_up_in_float64():
    """A billion and a millionth, of two learners: nothing is lost, nor mixed up between names and shapes."""

    def work(rank: int, group: Group) -> dict[str, Any]:
        reduction = SummedReduction(None, group)  # type: ignore[arg-type]
        matrix = torch.tensor([[1, 2], [3, 4]]) * (rank + 1)
        small = torch.tensor(1e-6, dtype=torch.float64)
        totals = reduction.stats({"large": torch.tensor(1e9 * rank), "matrix": matrix, "small": small})
        return {name: value.tolist() for name, value in totals.items()}

    assert together(2, work) == [{"large": 1e9, "matrix": [[3.0, 6.0], [9.0, 12.0]], "small": 2e-6}] * 2


def test_rows_that_nobody_can_number_are_refused():
    """A learner whose `post` leaves rows out would take others' rows for its own."""

    def work(rank: int, group: Group) -> str:
        with pytest.raises(SpecMismatchError) as caught:
            assigned(SummedReduction(None, group), range(10), 20).share_of(9)  # type: ignore[arg-type]
        return str(caught.value)

    assert "post made 9 training rows of 10 stored ones" in together(1, work)[0]


def test_rows_may_be_sequences():
    """A row for every four steps: learners number them as they would steps; what is no whole number is refused."""

    def work(rank: int, group: Group) -> tuple[range, int]:
        reduction = assigned(SummedReduction(None, group), range(24, 48), 48)  # type: ignore[arg-type]
        for rows in (0, 5, 48):
            with pytest.raises(SpecMismatchError):
                reduction.share_of(rows)
        return reduction.share_of(6)

    assert together(1, work)[0] == (range(6, 12), 12)


def test_a_server_is_told_the_rows_of_all():
    """It plans over as many rows as the learners, also where a row is a sequence of steps, which it never sees."""
    learners = Rendezvous(HOST, PATIENCE_SECONDS)

    def work(rank: int, server: Group) -> int:
        if rank == 2:
            return awaited_from_first(server)
        with meet(rank, 2, Present(learners.port), None if rank else learners) as group:
            reduction = ServerReduction(None, group, server)  # type: ignore[arg-type]
            return assigned(reduction, range(24 * rank, 24 * (rank + 1)), 48).share_of(6)[1]

    assert together(3, work) == [12, 12, 12]


def test_a_server_waits_while_learners_act(monkeypatch):
    """Longer than members wait for each other once they have met."""
    seconds, rendezvous, done = 2.0, Rendezvous(HOST, PATIENCE_SECONDS), threading.Event()
    gloo = process_group._gloo

    def impatient(*given: Any) -> Any:
        group = gloo(*given)
        group._set_default_timeout(timedelta(seconds=seconds))
        return group

    monkeypatch.setattr(process_group, "_gloo", impatient)

    def serve() -> int:
        with meet(1, 2, Present(rendezvous.port), None) as server:
            found = awaited_from_first(server)
            done.set()
            return found

    def learn() -> None:
        with meet(0, 2, Present(rendezvous.port), rendezvous) as server:
            time.sleep(1.5 * seconds)
            awaited_from_first(server, 7)
            assert done.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(2) as threads:
        acted = threads.submit(learn)
        assert threads.submit(serve).result(PATIENCE_SECONDS) == 7
        acted.result(PATIENCE_SECONDS)


def test_a_server_that_waits_may_be_told_to_leave():
    """While learners act: at once, also where these never do anything more."""
    rendezvous, left = Rendezvous(HOST, PATIENCE_SECONDS), threading.Event()
    members = Present(rendezvous.port)

    def serve() -> None:
        with meet(1, 2, members, None) as server:
            members.reason = "told so"
            awaited_from_first(server)

    def act() -> None:
        with meet(0, 2, Present(rendezvous.port), rendezvous):
            assert left.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(2) as threads:
        acting = threads.submit(act)
        with pytest.raises(GangError, match="told so"):
            threads.submit(serve).result(PATIENCE_SECONDS / 2)
        left.set()
        acting.result(PATIENCE_SECONDS)


def test_a_leaving_member_does_not_wait_to_connect():
    """Before the group is whole: at once, with the reason that it was given."""
    rendezvous = Rendezvous(HOST, PATIENCE_SECONDS)
    with pytest.raises(GangError, match="told so"):
        meet(0, 2, Present(rendezvous.port, "told so"), rendezvous)


def test_connecting_to_a_missing_member_times_out():
    """Past `gang_seconds`: with who is missing and the setting to raise."""
    rendezvous = Rendezvous(HOST, PATIENCE_SECONDS)
    with pytest.raises(MemberLostError, match=r"worker-0 lost worker-1 .*cluster\.gang_seconds"):
        meet(0, 2, Present(rendezvous.port), rendezvous, seconds=0.2)


def test_a_member_that_leaves_is_felt_by_the_others():
    """Its connections close with its group, so that nobody waits out a timeout."""
    kept = []

    def work(rank: int, group: Group) -> str:
        kept.append(group)  # so that leaving closes it, and not its end as an object
        group.sum(torch.ones(3))
        if rank:
            return ""
        with pytest.raises(MemberLostError) as caught:
            group.sum(torch.ones(3))
        return str(caught.value)

    said = together(2, work)[0]
    assert said.startswith("worker-0 lost worker-1 in their process group")
    assert "timed out" not in said.lower()


def die(rank: int, port: int) -> None:
    """A member in a process of its own, killed in the middle."""
    group = meet(rank, 3, Present(port), None)
    group.sum(random(100, seed=rank))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_member_is_felt_by_the_others():
    """By all of those that work in step with it, whichever they are."""
    rendezvous = Rendezvous(HOST, PATIENCE_SECONDS)
    victim = multiprocessing.get_context("spawn").Process(target=die, args=(2, rendezvous.port))
    victim.start()

    def work(rank: int) -> None:
        with ExitStack() as stack:
            group = stack.enter_context(meet(rank, 3, Present(rendezvous.port), None if rank else rendezvous))
            group.sum(random(100, seed=rank))
            with pytest.raises(MemberLostError):
                group.sum(torch.ones(3))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    victim.join(PATIENCE_SECONDS)
    assert victim.exitcode == -signal.SIGKILL


def test_a_member_lost_while_connecting_is_noticed_before_the_gang_time_out(monkeypatch):
    """All are present, then one is lost: the others notice long before the gang's time-out."""
    monkeypatch.setattr("penstock.tasks.runtime.process_group._MESH_SECONDS", 0.3)
    rendezvous = Rendezvous(HOST, PATIENCE_SECONDS)
    rendezvous.store.set("test/here/1", "1")
    with pytest.raises(MemberLostError):
        meet(0, 2, Present(rendezvous.port), rendezvous)
