"""Chains of annealing in parallel threads, and how many moves they judge in a time."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.native.floorplan.placement_cost import PlacementCost
from penstock.native.floorplan.placing.positions import positions_of, put_at, weighted_cost
from penstock.native.floorplan.searching import anneal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.native.floorplan.placing.positions import Positions
    from penstock.native.floorplan.proposals import Proposals

SEGMENTS = 60
"""Parts of a search: so often chains are compared, and the state is kept."""
_POLL_SECONDS = 0.25
_ENDS_SHARE = 0.1
"""Share of the time that begins and ends of segments may take; blocks where they take more get fewer segments."""
_TRIAL_SHARE = 0.0075
"""Share of the time that the last trial but one takes at least, and no less than a segment's begin and end: these two
trials measure the speed."""
_LAST_TRIAL = 4
"""Moves of the last trial for each of the one before."""
_FEWEST_TRIAL_MOVES, _MOST_TRIAL_MOVES = 1 << 10, 1 << 22
_APPROACH = 0.35
"""Power of the number of moves by which the logarithm of the speed nears its limit."""


@dataclass(frozen=True, slots=True)
class Job:
    """The block and the settings that all segments of a search share."""

    base: PlacementCost
    """Settings, ports and fixed nodes; only read."""
    weights: tuple[float, float, float]
    proposals: Proposals
    first_temperature: float
    last_temperature: float
    seed: int

    def temperature(self, share: float) -> float:
        """Return the temperature after a share of the moves, from 0 to 1."""
        return self.first_temperature * math.pow(self.last_temperature / self.first_temperature, share)

    def chain_seed(self, segment: int, chain: int) -> int:
        """Return the seed of a chain's segment: 63 bits that follow from all three numbers."""
        text = f"{self.seed} {segment} {chain}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a chain's segment."""

    positions: Positions
    cost: float
    judged: int


class _StoppedError(RuntimeError):
    """Raised within a chain whose search was interrupted."""


def run_chains(
    job: Job,
    starts: Sequence[Positions],
    moves: int,
    temperatures: tuple[float, float],
    segment: int,
    on_poll: Callable[[float], None],
    *,
    last: bool = False,
) -> list[Found]:
    """Anneal from each start in a thread of its own; the result depends on the arguments alone.

    Args:
        job: The search.
        starts: A placement a chain.
        moves: Of each chain.
        temperatures: The first and the last.
        segment: Its number, for the seeds.
        on_poll: Called a few times a second with the moves so far, on average over the chains. Where it raises, or
            Ctrl-C does, all chains end first.
        last: Whether no segment follows: then a chain ends with its best placement, and else with its last one, which
            is as hot as the segment's end. Starting from the best again and again would be searching cold.
    """
    judged = [0] * len(starts)
    stop = threading.Event()

    def run(chain: int) -> Found:
        def watch(done: int, _: int) -> None:
            judged[chain] = done
            if stop.is_set():
                raise _StoppedError

        # Always from exact positions: a chain that was stored and one that was not have the same state.
        plc = PlacementCost(job.base)
        put_at(plc, starts[chain])
        found = anneal(
            plc,
            moves=moves,
            first_temperature=temperatures[0],
            last_temperature=temperatures[1],
            soft_every=0,
            seed=job.chain_seed(segment, chain),
            proposals=job.proposals,
            weights=job.weights,
            leave_last=not last,
            on_progress=watch,
        )
        nodes = [node for node, *_ in starts[chain]]  # a search neither places nor takes away any
        return Found(positions_of(plc, nodes), weighted_cost(plc, job.weights), found.judged)

    with ThreadPoolExecutor(len(starts), thread_name_prefix="chain") as executor:
        futures = [executor.submit(run, chain) for chain in range(len(starts))]
        try:
            while wait(futures, _POLL_SECONDS).not_done:
                on_poll(sum(judged) / len(judged))
        except BaseException:
            stop.set()
            raise
        return [future.result() for future in futures]


def measure_moves(
    job: Job,
    start: Positions,
    threads: int,
    segments: int | None,
    seconds: float,
    on_poll: Callable[[float], None],
) -> tuple[int, int]:
    """Return the moves of each chain and the segments that fill a time, this measurement included.

    Args:
        job: The search.
        start: Where the search starts.
        threads: Chains.
        segments: Their number if it is given, or None.
        seconds: The time.
        on_poll: As of `run_chains`.
    """
    began = time.monotonic()

    def trial(moves: int) -> tuple[float, int]:
        at = time.monotonic()
        temperatures = job.first_temperature, job.last_temperature
        found = run_chains(job, [start] * threads, moves, temperatures, -1, on_poll)
        return time.monotonic() - at, min(one.judged for one in found)

    fixed_seconds = min(trial(0)[0] for _ in range(2))
    if segments is None:
        segments = max(1, min(SEGMENTS, int(_ENDS_SHARE * seconds / max(fixed_seconds, 1e-9))))
    moves, trials = _FEWEST_TRIAL_MOVES, list[tuple[int, float]]()
    while True:
        took, judged = trial(moves)
        if judged == 0:
            return 1, 1  # no macro is free, or none has a legal move
        trials.append((judged, max(took - fixed_seconds, 1e-6)))
        if judged < moves or moves >= _MOST_TRIAL_MOVES or len(trials) == 2:
            break
        if trials[0][1] >= max(_TRIAL_SHARE * seconds, fixed_seconds):  # shorter ones would measure begins and ends
            moves *= _LAST_TRIAL
        else:
            trials.clear()
            moves *= 2
    left = seconds - (time.monotonic() - began) - segments * fixed_seconds
    return moves_within(left, trials), segments


def moves_within(seconds: float, trials: Sequence[tuple[int, float]]) -> int:
    """Return the moves of an annealing that takes a time, at least 1.

    A longer annealing is faster, since it accepts less of what it judges: the speed is that of the longest trial, and
    what is gained from there follows from what was gained since the one before.

    Args:
        seconds: The time.
        trials: Moves and seconds of whole annealings, each with more moves than the one before.
    """
    most, longest = trials[-1]
    fewer, shorter = trials[-2:][0]
    speed = most / longest
    # More than this has not been seen: the machine had other work during the shorter one.
    gained = min(max(1.0, speed * shorter / fewer), 1.5)
    moves = speed * seconds
    for _ in range(20 if most > fewer else 0):  # the speed depends on the moves, and they on the speed
        ahead = max(0.0, 1 - (most / max(moves, 1.0)) ** _APPROACH)
        moves = seconds * speed * gained ** (ahead / ((most / fewer) ** _APPROACH - 1))
    return max(1, int(moves))


def available_cpus() -> int:
    """Return the CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
