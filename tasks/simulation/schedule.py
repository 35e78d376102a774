"""One schedule of the simulator: drawn from a seed, run to its end, and judged."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from penstock.storage import system
from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import PenstockError
from penstock.tasks.simulation.bystanders import collect_garbage, copy, read
from penstock.tasks.simulation.checks import RunChecks, ViolationError
from penstock.tasks.simulation.cluster import Network, SimulatedCluster, make_config
from penstock.tasks.simulation.faults import KINDS_OF_FOLDER, KINDS_OF_SERVICE, FaultPlan
from penstock.tasks.simulation.flow import drive
from penstock.tasks.simulation.memory import remembering
from penstock.tasks.simulation.store import Bucket, SimulatedStore
from penstock.tasks.simulation.system import SimulatedSystem
from penstock.tasks.simulation.world import Host, SimulatedProcess, World

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

STAGES = 3
_TILES = 2
_FAULTY_STEPS = 220
"""Faults are drawn among so many steps, which is somewhat less than an undisturbed run takes."""
_BYSTANDERS = 2
_TRIES = 6
BOUND_SECONDS = 600.0
"""Virtual time within which a commit must follow once no fault has consequences any more."""
_GENESIS = digest(canonical_json({"seed": 1}))


Kind: TypeAlias = Literal["folder", "fenced", "unfenced"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a schedule that its seed decides before it begins."""

    seed: int
    store: Kind
    lag: int
    quorum: float
    act_tasks: int
    faults: int
    second_flow: bool
    bystander: Literal["gc", "copy"]
    ends_with_flow: bool
    network: Network
    extended: bool = False
    """The run ends a stage earlier, and is extended then."""
    differences: bool = False
    """Differences between snapshots are stored; a folder needs none."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Draw the plan of a seed."""
        rng = random.Random(seed)  # noqa: S311  (no secret)
        kinds: tuple[Kind, ...] = ("folder", "fenced", "unfenced")
        store = rng.choice(kinds)
        # Without atomic creation nothing keeps two flows from learning from different shards: it is refused.
        quorum = 1.0 if store == "unfenced" else rng.choice((1.0, 1.0, 0.5))
        return cls(
            seed=seed,
            store=store,
            lag=rng.choice((0, 1)),
            quorum=quorum,
            act_tasks=2,
            faults=rng.randrange(3, 9),
            second_flow=rng.random() < 0.5,
            bystander="gc" if rng.random() < 0.5 else "copy",
            ends_with_flow=rng.random() < 0.5,
            network=Network(rng.choice((0.0, 0.2, 1.0)), rng.choice((0.0, 0.2)), rng.choice((0.01, 0.5, 5.0))),
            extended=rng.random() < 0.25,
            differences=rng.random() < 0.25 and store != "folder",
        )


@dataclass(slots=True)
class Outcome:
    """The end of a schedule."""

    plan: Plan
    violation: str
    """The rule that was broken; empty if none was."""
    steps: int
    faults: int
    coverage: Counter[tuple[str, str]]
    trace: list[str]
    quiet_seconds: float
    """Virtual seconds from the last consequence of a fault to the commit after it."""
    commits: dict[int, bytes] = field(default_factory=dict)


def run_schedule(seed: int, *, traced: bool = False) -> Outcome:
    """Run the schedule of a seed; the same seed gives the same outcome in every process."""
    plan = Plan.draw(seed)
    return _Schedule(
        plan, _expected(plan.lag, extended=plan.extended) if plan.quorum == 1.0 else None, traced=traced
    ).run()


@cache
def _expected(lag: int, *, extended: bool) -> dict[int, bytes]:
    """Return the commits of an undisturbed run."""
    plan = Plan(0, "folder", lag, 1.0, 2, 0, False, "gc", True, Network(0.0, 0.0, 0.01), extended)
    outcome = _Schedule(plan, None, traced=False).run()
    if outcome.violation:
        raise AssertionError(f"an undisturbed run failed: {outcome.violation}")
    return outcome.commits


class _Schedule:
    def __init__(self, plan: Plan, expected: dict[int, bytes] | None, *, traced: bool) -> None:
        rng = random.Random(plan.seed ^ 0x5DEECE66D)  # noqa: S311  (no secret)
        kinds = KINDS_OF_FOLDER if plan.store == "folder" else KINDS_OF_SERVICE
        self.plan = plan
        self.world = World(rng.getrandbits(64), FaultPlan.draw(rng, kinds, plan.faults, _FAULTY_STEPS), traced=traced)
        self.checks = RunChecks(_GENESIS, expected, _TILES, STAGES)
        bucket = Bucket(self.world, "runs", plan.store, self._changed)
        self.checks.bucket = bucket
        self.copied = Bucket(self.world, "backup", plan.store, lambda *_: None)
        self._copied_whole = False
        hosts = [Host("host-0")] if plan.store == "folder" else [Host(f"host-{index}") for index in range(3)]
        stages = STAGES - plan.extended
        config, policy = make_config(plan.lag, plan.quorum, plan.act_tasks, stages, differences=plan.differences)
        store = SimulatedStore(bucket)
        self.cluster = SimulatedCluster(
            self.world, hosts, plan.network, store, config, policy, ends_with_flow=plan.ends_with_flow
        )
        self.cluster.extended_stages = STAGES if plan.extended else 0
        self.violation = ""
        self._was_finished = False
        self._idle = 0
        """Bystanders that have done their part."""

    def run(self) -> Outcome:
        """Run all flows and bystanders until the run is finished, and everything else has ended."""
        world, rng = self.world, self.world.rng
        disabled, logging.root.manager.disable = logging.root.manager.disable, logging.CRITICAL
        quiet_seconds = 0.0
        bystanders = _BYSTANDERS if self.plan.faults else 0
        try:
            with system.replaced(SimulatedSystem(world)), remembering():
                self._operate(0.0)
                if self.plan.second_flow:
                    self._operate(rng.uniform(0.0, 60.0))
                if bystanders:
                    self._attend("read", lambda: read(self.cluster))
                    if self.plan.bystander == "gc":
                        self._attend("gc", lambda: collect_garbage(self.cluster))
                    else:
                        self._attend("copy", self._copy)
                while not self.violation and not self.checks.finished:
                    bound = self._bound()
                    world.run(bound)
                    if not self.violation and not self.checks.finished and self._bound() == bound:
                        self.violation = f"no commit follows {self.checks.committed_at} within {BOUND_SECONDS:g} s"
                quiet_seconds = self.checks.committed_at[-1] if self.checks.committed_at else 0.0
                quiet_seconds = max(0.0, quiet_seconds - world.faults.last_effect_at)
                if not self.violation and self._idle < bystanders:
                    world.run(world.now + BOUND_SECONDS)
                self._check_end()
                world.close()
                self.cluster.close()
                self.checks.bucket.close()
                self.copied.close()
        finally:
            logging.root.manager.disable = disabled
        plan, faults, trace = self.plan, world.faults.happened, world.trace or []
        steps, coverage, commits = world.steps, world.coverage, self.checks.commits
        return Outcome(plan, self.violation, steps, faults, coverage, trace, quiet_seconds, commits)

    def _bound(self) -> float:
        """Return the virtual time before which the next commit must come."""
        committed = self.checks.committed_at[-1] if self.checks.committed_at else 0.0
        return max(committed, self.world.faults.last_effect_at) + BOUND_SECONDS

    def _check_end(self) -> None:
        try:
            if not self.violation:
                self.checks.check_end()
            if not self.violation and self._copied_whole:
                self.checks.check_copy(self.copied)
        except ViolationError as error:
            self.violation = str(error)

    def _changed(self, name: str, content: bytes | None) -> None:
        """Check a change; a violation ends the schedule, whatever the code that caused it does with errors."""
        try:
            self.checks.changed(name, content)
        except (ViolationError, PenstockError) as error:
            self.world.note(f"violation: {error}")
            self._violate(str(error))
        if self.checks.finished and not self._was_finished:
            self._was_finished = True
            self.world.stop()

    def _violate(self, text: str) -> None:
        self.violation = self.violation or text
        self.world.stop()

    def _launch(self, role: str, work: Callable[[], object], ended: Callable[[BaseException | None], object]) -> None:
        host = self.cluster.hosts[0 if role == "flow" else -1]

        def exited(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, PenstockError):
                self._violate(f"{role} failed with {type(error).__name__}: {error}")
            self.world.note(f"{process.name} ended{f': {error}' if error else ''}")
            if role == "flow":
                self.cluster.flow_ended(process)
            ended(error)

        process = SimulatedProcess(self.world, host, role, exited)
        process.start(work)

    def _operate(self, seconds: float) -> None:
        """Start a flow, and another whenever one ends before the run is finished."""

        def ended(_: BaseException | None) -> None:
            if not self.checks.finished:
                self._operate(self.world.rng.uniform(0.5, 30.0))

        self.world.after(seconds, self._launch, "flow", lambda: drive(self.cluster), ended)

    def _attend(self, role: str, work: Callable[[], bool], tries: int = _TRIES) -> None:
        """Start a bystander after a while, and again until it has done its part."""
        done = False

        def attempt() -> None:
            nonlocal done
            done = work()

        def ended(_: BaseException | None) -> None:
            if tries > 1 and not done:
                self._attend(role, work, tries - 1)
            else:
                self._idle += 1
                if self._was_finished and self._idle == _BYSTANDERS:
                    self.world.stop()

        self.world.after(self.world.rng.uniform(0.0, 15.0), self._launch, role, attempt, ended)

    def _copy(self) -> bool:
        self._copied_whole = copy(self.cluster, SimulatedStore(self.copied))
        return self._copied_whole
