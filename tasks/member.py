"""One member of a gang at work: the halves that its role's fragments make, in one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from tasks.act import act
from tasks.composition import compose
from tasks.env import EnvironmentServer, env, served_tiles
from tasks.groups import OFFER, MeetingPoint
from tasks.learn import learn
from tasks.placement import tiles_of
from tasks.replay import replay, serve_replay
from tasks.server import serve

if TYPE_CHECKING:
    from tasks.assignment import Assignment
    from tasks.composition import Half
    from tasks.context import RunContext
    from tasks.membership import Membership


class Member:
    """What a role's fragments make of a member. A context manager, whose end closes what it offered."""

    def __init__(self, assignment: Assignment, context: RunContext) -> None:
        role = next(role for role in context.policy.roles if role.name == assignment.role)
        composition = compose(role.fragments)
        if composition is None:
            raise TypeError(f"nothing plays {sorted(role.fragments)}; check_supported refuses such a policy")
        self.assignment = assignment
        self.context = context
        self.composition = composition
        self._meeting: MeetingPoint | None = None
        self._server: EnvironmentServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    def offer(self, host: str) -> dict[str, Any]:
        """What the others have to know of this member before they begin.

        Where the first learner can be met, or where environments are stepped, and whose.
        """
        if "env" in self.composition.halves:
            tiles = tiles_of(self.assignment.replica, self.assignment.replicas, self.context.config.environment.tiles)
            last_round = self.context.rounds_of(self.assignment.stage)[-1]
            self._server = EnvironmentServer(self.context, tiles, last_round, host, self.assignment.member)
            return self._server.offer()
        if self.context.policy.reduce == "local" or self.assignment.replica or "learn" not in self.composition.halves:
            return {}
        self._meeting = MeetingPoint(host, self.assignment.gang_seconds)
        return {OFFER: self._meeting.port}

    def play(self, membership: Membership) -> dict[Half, dict[str, Any]]:
        """Play all halves to the end: the last in this thread, others beside it.

        Returns:
            What each half returns.

        Raises:
            PenstockError: what went wrong first; the other half has left as well.
        """
        *beside, own = self.composition.halves
        failed: list[BaseException] = []

        def run(half: Half) -> dict[str, Any]:
            try:
                return self._play(half, membership)
            except BaseException as error:
                failed.append(error)
                membership.abandon(str(error))
                raise

        with ThreadPoolExecutor(max(1, len(beside)), thread_name_prefix="half") as threads:
            futures = {half: threads.submit(run, half) for half in beside}
            results: dict[Half, dict[str, Any]] = {}
            try:
                results[own] = run(own)
                results |= {half: future.result() for half, future in futures.items()}
            except BaseException as error:
                if failed and failed[0] is not error:
                    raise failed[0] from error
                raise
        return results

    def _play(self, half: Half, membership: Membership) -> dict[str, Any]:
        assignment, context = self.assignment, self.context
        if half == "act":
            served = served_tiles(membership) if self.composition.pools == "remote" else None
            return act(assignment, context, membership, served)
        if half == "server":
            begin = serve if context.config.acts else serve_replay
            return begin(assignment, context, membership)
        if half == "learn":
            if not context.config.acts:
                return replay(assignment, context, membership, self._meeting)
            return learn(assignment, context, membership, self._meeting)
        if self._server is None:
            raise RuntimeError("environments are served only after they were offered")
        return env(assignment, self._server, membership)
