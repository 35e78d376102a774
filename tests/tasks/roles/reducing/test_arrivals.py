"""Learners take steps at a server independently; the order of arrivals alone decides what everybody ends with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.errors import MemberLostError
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import gather_minibatches, rows_of, take_share
from penstock.tasks.roles.reducing.arrivals import ArrivalServer
from penstock.tasks.roles.reducing.gradient_links import GradientListener, TensorLink
from penstock.tasks.roles.reducing.pace import Pace, StalenessTally, parts_of
from penstock.tasks.roles.reducing.reduction import StaleReduction, awaited_from_first, copy_round_state
from penstock.tasks.runtime.metrics import EdgeTally
from penstock.tasks.runtime.process_group import Group, Rendezvous
from penstock.tasks.setup.config.on_policy import PPOSettings

from ....support.algorithms.ppo_cases import CHOICES, random
from .test_gradient_links import linked, stay
from .test_reduction import HOST, PATIENCE_SECONDS, ROWS, Present, batch_of, meet, plan_of, share, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Loss
    from penstock.tasks.roles.stepping.sockets import LinkAddress
    from penstock.tasks.specs import State

SHARES = (range(25), range(25, ROWS))
LEARNERS = len(SHARES)


class DependentPPO(PPO):
    """The same losses, of which each gradient is computed after the step of the one before."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        return tuple(replace(loss, independent=False) for loss in super().losses)


def make(kind: str) -> PPO:
    settings = {"hidden": (8,), "epochs": 2, "minibatches": 5}
    if kind == "normalising":
        settings |= {"normalize_observation": True, "normalize_reward": True}
    return (DependentPPO if kind == "dependent" else PPO)(PPOSettings(**settings), CHOICES)  # type: ignore[arg-type]


KINDS = ["plain", "normalising", "dependent"]


def vectors(state: State) -> dict[str, Tensor]:
    return {name: group.flat.clone() for name, group in state.params.items()} | dict(state.targets)


def learn(
    ppo: PPO, rank: int, group: Group, server: Group, link: TensorLink, delays: Sequence[float]
) -> dict[str, Tensor]:
    """Learn a round as a learner does, slowed down; returns the parameters."""
    state, batch = ppo.init(1), share(batch_of(ppo), SHARES[rank])
    reduction = StaleReduction(ppo, group, server, link, PATIENCE_SECONDS)
    reduction.assign(SHARES[rank], ROWS)
    totals = reduction.stats(ppo.stats(batch))
    stats = {name: value.item() for name, value in totals.items() if not value.dim()}
    own, _ = reduction.share_of(len(SHARES[rank]))
    shares = take_share(plan_of(ppo), own, ROWS)
    for number, (minibatch, rows) in enumerate(gather_minibatches(partial(rows_of, batch), shares, 16)):
        time.sleep(delays[number % len(delays)])
        count = reduction.loss_rows(len(minibatch.rows), len(minibatch.own))
        for loss in ppo.losses:
            gradient, _ = minibatch_gradient(loss, state, rows, stats, 4096, count)
            with torch.no_grad():
                state = reduction.update(state, loss, gradient)
        with torch.no_grad():
            state = reduction.after_minibatch(state)
    with torch.no_grad():
        return vectors(reduction.after_round(state, totals))


def run(
    kind: str, bound: int, delays: Sequence[Sequence[float]], order: Sequence[int] | None = None
) -> tuple[list[Any], tuple[int, ...], StalenessTally]:
    """Learn a round with two learners and a server; returns the parameters of all three, the order, and its tally."""
    ppo, learners, tally = make(kind), Rendezvous(HOST, PATIENCE_SECONDS), StalenessTally()
    orders: list[tuple[int, ...]] = []
    listener = GradientListener(HOST, "server-0", LEARNERS, PATIENCE_SECONDS)

    @torch.no_grad()
    def serve(server: Group) -> dict[str, Tensor]:
        with listener.accept(stay) as links:
            assert awaited_from_first(server) == ROWS
            pace = Pace(LEARNERS, len(plan_of(ppo)), len(parts_of(ppo)), bound)
            arrivals = ArrivalServer(ppo, links, EdgeTally(), tally)
            state, taken = arrivals.serve(ppo.init(1), pace, order)
        orders.append(taken)
        copy_round_state(ppo, state, server)
        return vectors(state)

    def work(rank: int, server: Group) -> dict[str, Tensor]:
        if rank == LEARNERS:
            return serve(server)
        members = Present(learners.port)
        with meet(rank, LEARNERS, members, None if rank else learners) as group, linked(listener.address, rank) as link:
            return learn(ppo, rank, group, server, link, delays[rank])

    try:
        return together(LEARNERS + 1, work), orders[0], tally
    finally:
        listener.close()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("bound", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_repeated_in_its_order_gives_the_same_bytes(kind, bound):
    """All three members have the same, though first one learner is slow and then the other, whose turn it is."""
    first, order, _ = run(kind, bound, [(0.0,), (0.02, 0.0)])
    again, repeated, _ = run(kind, bound, [(0.0, 0.0, 0.03), (0.0,)], order)
    assert repeated == order
    assert all(same(found, first[0]) for found in (*first, *again))
    parts = len(parts_of(make(kind)))
    sent = [0] * LEARNERS
    for learner in order:
        assert sent[learner] // parts - min(sent) // parts <= bound, "the record shows that the bound was kept"
        sent[learner] += 1
    assert sent == [len(plan_of(make(kind))) * parts] * LEARNERS


ORDERS = {0: (0, 1, 1, 0) * 5 + (0, 1), 2: (0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0)}


@pytest.mark.parametrize("bound", [0, 2])
def test_each_gradient_is_a_step_from_the_parameters_of_the_last_reply(bound):
    """The parameters are those of one process that takes the same steps in turn, each a mean over a learner's rows.

    The last minibatch has no rows of the second learner, for which no step is taken.
    """
    ppo, plan, order = make("plain"), plan_of(make("plain")), ORDERS[bound]
    found, _, tally = run("plain", bound, [(0.0,)] * LEARNERS, order)
    batch, stats = batch_of(ppo), {name: value.double().item() for name, value in ppo.stats(batch_of(ppo)).items()}
    state = ppo.init(1)
    seen = [ppo.init(1) for _ in SHARES]
    done, waiting = [0] * LEARNERS, set()
    for learner in order:
        picked = [row for row in plan[done[learner]].tolist() if row in SHARES[learner]]
        rows = rows_of(batch, torch.tensor(picked, dtype=torch.int64))
        for loss in ppo.losses if picked else ():
            gradient, _ = minibatch_gradient(loss, seen[learner], rows, stats, 4096, len(picked))
            with torch.no_grad():
                state = ppo.update(state, loss, gradient)
        done[learner] += 1
        waiting.add(learner)
        for one in [one for one in waiting if done[one] - min(done) <= bound]:
            for name, group in state.params.items():
                seen[one].params[name].flat.copy_(group.flat)
            waiting.remove(one)
    for members in found:
        for name, value in vectors(state).items():
            torch.testing.assert_close(members[name], value, rtol=0, atol=1e-6)
    counts = tally.counts()
    assert (counts.minibatches, counts.greatest_lead) == (LEARNERS * len(plan), bound)
    assert counts.greatest_delay >= 1


def exchange(ppo: PPO, link: TensorLink, minibatches: int) -> None:
    """Send gradients and receive parameters as a learner does."""
    params = ppo.init(1).params
    for _ in range(minibatches):
        link.send([torch.tensor([1]), *(random(*params[loss.group].flat.shape) for loss in ppo.losses)])
        link.receive([params[name].flat for name in sorted(params)], 2 * PATIENCE_SECONDS)


def die(rank: int, address: LinkAddress) -> None:
    """A learner in a process of its own that is killed when the server waits for its third gradient."""
    ppo = make("plain")
    exchange(ppo, linked(address, rank), 2)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "order",
    [pytest.param(None, id="any order"), pytest.param((0, 1) * 11, id="a stored order", marks=pytest.mark.slow)],
)
def test_a_killed_learner_is_felt_by_all(order):
    """By the server, and by the other learner, which is ahead and waits for a reply: long before the time-out."""
    ppo, listener = make("plain"), GradientListener(HOST, "server-0", LEARNERS, 2 * PATIENCE_SECONDS)
    victim = multiprocessing.get_context("spawn").Process(target=die, args=(1, listener.address))
    victim.start()

    def server() -> None:
        with listener.accept(stay) as links:
            serving = ArrivalServer(ppo, links, EdgeTally(), StalenessTally())
            with torch.no_grad(), pytest.raises(MemberLostError, match="the link to learner 1 broke"):
                serving.serve(ppo.init(1), Pace(LEARNERS, len(plan_of(ppo)), 1, 1), order)

    def learner() -> None:
        with linked(listener.address, 0) as link, pytest.raises(MemberLostError):
            exchange(ppo, link, len(plan_of(ppo)))

    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(server), threads.submit(learner)]:
            future.result(PATIENCE_SECONDS)
    listener.close()
    victim.join(PATIENCE_SECONDS)
    assert victim.exitcode == -signal.SIGKILL
