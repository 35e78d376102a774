"""One annealing over a given time, in segments, after each of which chains continue from the best of them."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.native.floorplan.placement_cost import PlacementCost
from penstock.native.floorplan.placing.chains import SEGMENTS, Job, available_cpus, measure_moves, run_chains
from penstock.native.floorplan.placing.positions import positions_of, put_at, weighted_cost
from penstock.native.floorplan.placing.results import PlaceResult, write_best, write_results
from penstock.native.floorplan.placing.starting import make_legal
from penstock.native.floorplan.placing.state import OutFolder, State, describe_block
from penstock.native.floorplan.proposals import Proposals, proposals_for
from penstock.native.floorplan.searching import DEFAULT_WEIGHTS, temperatures_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

_MINUTES = 10.0


@dataclass(frozen=True, slots=True)
class PlaceProgress:
    """A search at one moment."""

    segments_done: int
    segments: int
    """0 while the speed is measured."""
    moves_done: int
    """Legal moves of each chain, on average."""
    moves: int
    cost: float
    """Weighted, of the best chain when they were last compared."""
    best: float
    start_cost: float
    temperature: float
    seconds: float
    """Wall time so far, before a resume included."""
    seconds_left: float | None
    """At the pace since the start or the resume; None until that is known."""
    layout: PlacementCost
    """The best placement so far; read it only within the call."""


def place(
    plc: PlacementCost,
    *,
    minutes: float | None = None,
    moves: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    segments: int | None = None,
    weights: tuple[float, float, float] = DEFAULT_WEIGHTS,
    proposals: Proposals | None = None,
    first_temperature: float | None = None,
    last_temperature: float | None = None,
    out: str | os.PathLike[str] | None = None,
    again: bool = False,
    on_progress: Callable[[PlaceProgress], None] = lambda _: None,
) -> PlaceResult:
    """Place the macros within a time: legalise where needed, then anneal in segments, a chain in each thread.

    After each segment the worse half of the chains continues from the best one. The result depends on the block, the
    seed, the threads, the moves and the segments alone. With `minutes` the moves follow from a speed that is measured
    first, so the time is kept about, not exactly.

    Args:
        plc: Changed in place, to the best placement.
        minutes: Wall time, the measurement included; 10 where neither this nor `moves` is given.
        moves: Instead of a time: legal moves of each chain.
        seed: Of the moves.
        threads: Chains, each in a thread; by default the CPUs that there are, or those that the search began with.
        segments: Parts of the search; by default 60, or fewer where their begins and ends would take much of the time.
        weights: Of wirelength, density and congestion.
        proposals: How changes are drawn; by default soft macros move too, and places are drawn by what they cost, as
            was learned on blocks like this one (`proposals_for`).
        first_temperature: In units of the weighted cost; by default as `anneal` has it.
        last_temperature: Likewise; temperatures between are geometric.
        out: Folder for the result, and for the state after each segment. A search that is there is continued, to the
            same bytes as if it had not been stopped; a finished one gives its result again.
        again: Begin anew, whatever search the folder holds.
        on_progress: Called by this thread a few times a second.

    Raises:
        ValueError: An argument is invalid, no legal start was found, or the folder can't be used.
    """
    proposals = proposals_for(plc) if proposals is None else proposals
    first_temperature, last_temperature = temperatures_of(plc, proposals, first_temperature, last_temperature)
    _check(minutes, moves, seed, threads, segments, weights)
    if minutes is None and moves is None:
        minutes = _MINUTES
    asked = {"minutes": minutes, "moves": moves, "threads": threads, "segments": segments}
    identity: dict[str, Any] = {
        "minutes": minutes,
        **{name: value for name, value in asked.items() if value is not None},
        "seed": seed,
        "weights": list(weights),
        "proposals": proposals.values(),
        "temperatures": [first_temperature, last_temperature],
        **describe_block(plc),
    }
    given = PlacementCost(plc)
    folder = None if out is None else OutFolder(Path(out))
    if folder is not None and not again:
        folder.load(identity)  # another search is refused before the work begins
    legalised = make_legal(plc)
    job = Job(PlacementCost(plc), weights, proposals, first_temperature, last_temperature, seed)
    search = _Search(job, on_progress)
    with contextlib.nullcontext() if folder is None else folder.held():
        state = None if folder is None or again else folder.load(identity)
        if state is None:
            state = search.begin(identity, minutes, moves, threads, segments)
            if folder is not None:
                folder.save(state)
        state = search.run(state, folder)
        put_at(plc, state.best)
        return write_results(plc, given, state, folder, legalised=legalised)


class _Search:
    """A search in this process, and its time."""

    def __init__(self, job: Job, on_progress: Callable[[PlaceProgress], None]) -> None:
        self._job, self._on_progress = job, on_progress
        self._layout = PlacementCost(job.base)
        self._began = time.monotonic()
        self._seconds_before = 0.0
        self._moves_before = 0

    @property
    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._began

    def begin(
        self,
        identity: dict[str, Any],
        minutes: float | None,
        moves: int | None,
        threads: int | None,
        segments: int | None,
    ) -> State:
        """Return the state of a search that has not judged a move yet; its moves are measured unless they are given."""
        start, cost = positions_of(self._job.base), weighted_cost(self._job.base, self._job.weights)
        threads = threads or available_cpus()
        if moves is None:
            moves, segments = measure_moves(
                self._job, start, threads, segments, 60.0 * (minutes or _MINUTES), lambda _: self._measuring(cost)
            )
        segments = max(1, min(segments or SEGMENTS, moves))
        return State(
            identity={"moves": moves, "threads": threads, "segments": segments, **identity},
            moves=moves,
            segments=segments,
            threads=threads,
            done=0,
            judged=0,
            seconds=self._seconds,
            costs=(cost,) * threads,
            chains=(start,) * threads,
            best_cost=cost,
            best=start,
            curve=({"seconds": self._seconds, "moves": 0, "cost": cost, "best": cost},),
        )

    def run(self, state: State, folder: OutFolder | None) -> State:
        """Run the segments that are left; each one's state is kept in the folder before the next begins."""
        self._began, self._seconds_before = time.monotonic(), state.seconds
        self._moves_before = _moves_until(state, state.done)
        put_at(self._layout, state.best)
        self._show(state, 0.0)
        while state.done < state.segments:
            state = self._after_segment(state)
            put_at(self._layout, state.best)
            if folder is not None:
                folder.save(state)
                write_best(self._layout, state, folder)
            self._show(state, 0.0)
        return state

    def _after_segment(self, state: State) -> State:
        """Run the next segment of all chains, compare them, and return the state after it."""
        job, number = self._job, state.done
        first, until = _moves_until(state, number), _moves_until(state, number + 1)
        temperatures = job.temperature(number / state.segments), job.temperature((number + 1) / state.segments)
        found = run_chains(
            job,
            state.chains,
            until - first,
            temperatures,
            number,
            lambda moves: self._show(state, moves),
            last=number + 1 == state.segments,
        )
        chains, costs = [one.positions for one in found], [one.cost for one in found]
        order = sorted(range(state.threads), key=lambda chain: (costs[chain], chain))
        best, best_cost = state.best, state.best_cost
        if costs[order[0]] < best_cost:
            best, best_cost = chains[order[0]], costs[order[0]]
        for chain in order[state.threads - state.threads // 2 :]:
            chains[chain], costs[chain] = chains[order[0]], costs[order[0]]
        seconds = self._seconds
        point = {"seconds": seconds, "moves": until, "cost": costs[order[0]], "best": best_cost}
        return replace(
            state,
            done=number + 1,
            judged=state.judged + sum(one.judged for one in found),
            seconds=seconds,
            costs=tuple(costs),
            chains=tuple(chains),
            best_cost=best_cost,
            best=best,
            curve=(*state.curve, point),
        )

    def _measuring(self, cost: float) -> None:
        first = self._job.first_temperature
        self._on_progress(PlaceProgress(0, 0, 0, 0, cost, cost, cost, first, self._seconds, None, self._layout))

    def _show(self, state: State, moves_in_segment: float) -> None:
        done = _moves_until(state, state.done) + moves_in_segment
        here = done - self._moves_before
        spent = time.monotonic() - self._began
        self._on_progress(
            PlaceProgress(
                segments_done=state.done,
                segments=state.segments,
                moves_done=int(done),
                moves=state.moves,
                cost=min(state.costs),
                best=state.best_cost,
                start_cost=state.curve[0]["cost"],
                temperature=self._job.temperature(done / state.moves),
                seconds=self._seconds,
                seconds_left=(state.moves - done) * spent / here if here > 0 else None,
                layout=self._layout,
            )
        )


def _moves_until(state: State, segment: int) -> int:
    """Return the moves of each chain before a segment."""
    return state.moves * segment // state.segments


def _check(
    minutes: float | None,
    moves: int | None,
    seed: int,
    threads: int | None,
    segments: int | None,
    weights: tuple[float, float, float],
) -> None:
    if minutes is not None and moves is not None:
        raise ValueError(f"minutes is {minutes} and moves {moves}, expected one of them; leave the other out")
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"minutes is {minutes}, expected a time above 0")
    for name, value in (("moves", moves), ("threads", threads), ("segments", segments)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1")
    if seed < 0:
        raise ValueError(f"seed is {seed}, expected at least 0")
    if len(weights) != 3 or not all(0 <= weight < math.inf for weight in weights):
        raise ValueError(f"weights are {weights}, expected three numbers of at least 0")
