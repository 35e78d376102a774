"""Environments in a process of their own: acting over a link gives the bytes that acting in one process gives."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock.storage.errors import ConfigError, DivergedError, GangError, MemberLostError
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.data.snapshots.opponents import make_acting_pool
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor, act_together
from penstock.tasks.roles.stepping import server as stepping_server
from penstock.tasks.roles.stepping.remote_pool import RemotePool
from penstock.tasks.roles.stepping.server import EnvironmentServer
from penstock.tasks.roles.stepping.sockets import LinkAddress

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Spec

    from ...conftest import MakeContext

ROUNDS = 4
TILES = range(2)
PATIENCE_SECONDS = 150.0
COLUMNS = ("observation", "reward", "terminated", "truncated", "episode_id")

SERVE = """
import json, os, sys
from penstock.storage.records import to_json
from penstock.tasks.runtime.run_context import _load
from penstock.tasks.roles.stepping.server import EnvironmentServer

def serve(store, name, cache, last_round):
    context = _load(store, name, "", cache)
    with EnvironmentServer(context, range(2), last_round, "127.0.0.1", "env-0") as server:
        print(json.dumps([os.getpid(), server.address.to_json()]), flush=True)
        server.serve(lambda: None)
        print(json.dumps(to_json(server.times("env-0"))), flush=True)

for line in sys.stdin:
    child = os.fork()
    if not child:
        serve(*json.loads(line))
        sys.exit()
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
"""

Rounds = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """Start a process that imports what a server needs, and forks one for each line: imports take seconds."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


class Served:
    """A process that steps both tiles of a run, from whatever round to the end of the last one."""

    def __init__(self, context: RunContext, cache: Path, forking: subprocess.Popen[str]) -> None:
        assert forking.stdin is not None
        root, _, name = context.run.store.url.rpartition("/")
        self.context = context
        self._forking = forking
        self._status: int | None = None
        forking.stdin.write(json.dumps([root, name, str(cache), ROUNDS - 1]) + "\n")
        forking.stdin.flush()
        self._pid, address = self.said()
        self.address = LinkAddress.from_json(address)

    def said(self) -> Any:
        """Return what the process says next."""
        assert self._forking.stdout is not None
        return json.loads(self._forking.stdout.readline())

    def pool(self, tile: int, first_round: int = 0, make: type[RemotePool] = RemotePool) -> RemotePool:
        return make(self.context, tile, first_round, self.address, PATIENCE_SECONDS)

    def send_signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        while self._status is None:
            if isinstance(said := self.said(), int):
                self._status = said
        return self._status

    def close(self) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):
                self.send_signal(signal.SIGKILL)
            self.wait()


@pytest.fixture(params=["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow), "simple_spread_v3"])
def context(request: pytest.FixtureRequest, make_context: MakeContext) -> RunContext:
    """Two tiles of three environments; episodes end every five steps at the latest, rounds have eight."""
    name = "mappo" if request.param == "simple_spread_v3" else "ppo"
    return make_context({"environment": {"id": request.param}, "algorithm": {"name": name}})


@pytest.fixture
def served(context: RunContext, tmp_path: Path, forking: subprocess.Popen[str]) -> Iterator[Served]:
    served = Served(context, tmp_path / "env-cache", forking)
    yield served
    served.close()


def act(context: RunContext, actors: list[TileActor], rounds: int) -> Rounds:
    """Everything that the rounds leave, by tile; states as they are stored."""
    found: Rounds = {actor.tile: [] for actor in actors}
    by_tile = {actor.tile: actor for actor in actors}
    buffers = {actor.tile: RoundBuffers(context, actor.tile) for actor in actors}

    def keep(acted: Any) -> None:
        # Tiles end in the order in which their frames come.
        assert acted.round == by_tile[acted.tile].next_round - 1
        arrays = {name: array.copy() for name, array in acted.buffers.arrays.items()}
        arrays |= {f"episodes/{name}": np.array(value) for name, value in acted.end.episodes.items()}
        arrays["bootstrap_rows"] = np.array(acted.end.bootstrap_rows)
        arrays["bootstrap_observation"] = np.array(acted.end.bootstrap_observation)
        left = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}
        found[acted.tile].append({**left, "state": save_tensors(acted.state, {})})

    for _ in range(rounds):
        act_together(actors, 0, context.algorithm.init(3).params, lambda actor: buffers[actor.tile], keep)
    return found


def local(context: RunContext, rounds: int = ROUNDS) -> Rounds:
    actors = [TileActor(context, tile) for tile in TILES]
    for actor in actors:
        actor.start()
    return act(context, actors, rounds)


def started(served: Served, make: type[RemotePool] = RemotePool) -> list[TileActor]:
    actors = [TileActor(served.context, tile, served.pool(tile, make=make)) for tile in TILES]
    for actor in actors:
        actor.start()
    return actors


def arrays_bytes(spec: Spec) -> int:
    """The failing row is one environment's."""
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


def close(actors: list[TileActor]) -> None:
    for actor in actors:
        actor.close()


def test_another_process_steps_the_same(context: RunContext, served: Served):
    """Columns, bootstraps, episodes and states of every round; then the process ends, and its counts fit ours."""
    actors = started(served)
    assert act(context, actors, ROUNDS) == local(context)
    sent = [actor._pool.sent_bytes for actor in actors]  # type: ignore[union-attr]
    close(actors)
    times = served.said()
    assert served.wait() == 0
    steps = 2 * ROUNDS * 8
    action = arrays_bytes(context.environment.action.spec)
    assert times["env_steps"] == 3 * steps
    observation_bytes = 3 * arrays_bytes(context.environment.observation)
    frames = steps - 2 * ROUNDS + 2  # a round's last step shows nothing; the start of a tile does
    assert times["edges"]["env -> act"] == {"bytes": frames * observation_bytes, "rounds": steps + 2}
    assert times["edges"]["env -> collect"]["bytes"] > steps * 3 * 10
    assert [actor._pool.sent_frames for actor in actors] == [steps // 2] * 2  # type: ignore[union-attr]
    assert all(0 < count - steps // 2 * 3 * action < 2000 for count in sent)


def test_acting_resumes_from_stored_states(context: RunContext, served: Served):
    """A restarted actor reconnects with states from storage, one tile a round behind the other."""
    expected = local(context)
    actors = started(served)
    act(context, actors, 2)
    close(actors)
    for tile, done in ((0, 2), (1, 1)):
        state, _ = load_tensors(memoryview(expected[tile][done - 1]["state"]), "state")
        actor = TileActor(context, tile, served.pool(tile, done))
        actor.restore(state, done)
        assert act(context, [actor], ROUNDS - done) == {tile: expected[tile][done:]}
        actor.close()
    assert served.wait() == 0


def test_tiles_are_stepped_while_others_are_inferred(context: RunContext, served: Served):
    """Both tiles' actions are on their way before an answer is waited for; then each goes on when its answer comes."""
    order: list[tuple[str, int]] = []

    class Noted(RemotePool):
        def step_round(self, t: int, action: Any) -> None:
            order.append(("sent", self._tile))
            super().step_round(t, action)

        def receive_step(self) -> None:
            order.append(("received", self._tile))
            super().receive_step()

    actors = started(served, Noted)
    act(context, actors, 1)
    close(actors)
    assert order[:2] == [("sent", 0), ("sent", 1)]
    for tile in TILES:
        assert [what for what, of in order if of == tile] == ["sent", "received"] * 8
    assert order[-1][0] == "received"


@pytest.fixture
def pendulum(make_context: MakeContext, tmp_path: Path, forking: subprocess.Popen[str]) -> Iterator[Served]:
    served = Served(make_context({"environment": {"id": "Pendulum-v1"}}), tmp_path / "env-cache", forking)
    yield served
    served.close()


class Watched:
    """A tile whose one frame comes by a socket, and which says that it has read it."""

    def __init__(self, tile: int) -> None:
        self.tile, self.timeout_seconds = tile, PATIENCE_SECONDS
        self.own, self.peer = socket.socketpair()
        self.own.settimeout(PATIENCE_SECONDS)
        self.remote = self

    def fileno(self) -> int:
        return self.own.fileno()

    def acting(self, *_: object) -> Generator[None, None, int]:
        yield
        assert self.own.recv(1)
        self.own.sendall(b"read")
        return self.tile

    def close(self) -> None:
        self.own.close()
        self.peer.close()


def test_the_frame_that_comes_first_is_read_first():
    """A process that is sending one tile a large frame serves no other one before it is read."""
    with closing(Watched(0)) as first, closing(Watched(1)) as second:

        def serve() -> None:
            second.peer.sendall(b"x")
            assert second.peer.recv(4) == b"read"
            first.peer.sendall(b"x")

        server, done = threading.Thread(target=serve), list[Any]()
        server.start()
        act_together([first, second], 0, {}, lambda _: None, done.append)  # type: ignore[list-item, arg-type, return-value]
        server.join()
    assert done == [1, 0]


def test_a_killed_process_is_named(pendulum: Served):
    """In the middle of a round, the actor notices the lost peer at once: by the end of the link, not by a time-out."""
    actors = started(pendulum)
    pool: Any = actors[0]._pool
    pool.begin_round(*(RoundBuffers(pendulum.context, 0).arrays[name] for name in COLUMNS))
    pendulum.send_signal(signal.SIGSTOP)
    pool.step_round(0, np.zeros((3, 1), dtype=np.float32))
    pendulum.send_signal(signal.SIGKILL)
    with pytest.raises(MemberLostError, match=r"link to env-0 at 127.0.0.1:\d+ broke"):
        pool.receive_step()
    close(actors)


def test_a_peer_that_starts_another_tile_is_not_silent(pendulum: Served):
    """Each time-out looks at its count of starts: it is excused while that is odd, and once more after a change."""
    counts: Iterator[int] = itertools.repeat(1)
    pool = RemotePool(pendulum.context, 0, 0, pendulum.address, 0.2, check=lambda: None, starts=lambda: next(counts))
    pool.reset_ids(np.arange(3, dtype=np.uint64))
    pool.begin_round(*(RoundBuffers(pendulum.context, 0).arrays[name] for name in COLUMNS))
    counts = iter([1, 1, 2, 2])
    pendulum.send_signal(signal.SIGSTOP)
    pool.step_round(0, np.zeros((3, 1), dtype=np.float32))
    with pytest.raises(MemberLostError, match=r"env-0 .* within 0\.2 s"):
        pool.receive_step()
    assert list(counts) == []
    pool.close()


def test_a_tile_is_stepped_after_the_replay_of_another(make_context: MakeContext):
    """Environments that can't save their state are restored by repeating steps; no other tile is served meanwhile."""
    context = make_context({"environment": {"id": "gymnasium/Pendulum-v1"}})
    told: list[int] = []
    asked: list[int] = []
    under_way, replayed = threading.Event(), threading.Event()

    def starts() -> int:
        if not under_way.is_set():
            return 1  # excused, whatever takes long before
        asked.append(len(asked))
        if len(asked) == 3:
            replayed.set()
        return told[-1] if len(asked) < 3 else -len(asked)  # then excused for as long as it takes

    with EnvironmentServer(context, range(2), ROUNDS - 1, "127.0.0.1", "env-0") as server:
        slow = server._tiles[1]._pool
        restore = slow.restore

        def replay(state: Any) -> None:
            under_way.set()
            assert replayed.wait(PATIENCE_SECONDS)
            restore(state)

        slow.restore = replay  # type: ignore[method-assign]
        serving = threading.Thread(target=server.serve, args=(lambda: None, told.append))
        serving.start()
        pools = [
            RemotePool(context, tile, ROUNDS - 1, server.address, 0.5, check=lambda: None, starts=starts)
            for tile in TILES
        ]
        actors = [TileActor(context, tile, pools[tile]) for tile in TILES]
        actors[0].start()
        actors[0].next_round = ROUNDS - 1
        state = TileActor(context, 1)
        state.start()
        saved = state._pool.save()
        state.close()
        restoring = threading.Thread(target=actors[1].restore, args=(saved, ROUNDS - 1))
        restoring.start()
        assert under_way.wait(PATIENCE_SECONDS)
        assert told[-1] % 2 == 1
        act(context, [actors[0]], 1)
        restoring.join()
        act(context, [actors[1]], 1)
        serving.join()
        close(actors)
    assert len(asked) >= 3
    assert sorted(set(told)) == [1, 2, 3, 4]  # the same is told again after a while


def test_invalid_actions_are_not_sent(pendulum: Served):
    """Frames have no header, so anything but the next step's actions is refused before it is sent."""
    actors = started(pendulum)
    pool: Any = actors[0]._pool
    pool.begin_round(*(RoundBuffers(pendulum.context, 0).arrays[name] for name in COLUMNS))
    sent = pool.sent_bytes
    with pytest.raises(ValueError, match="got t=1, expected 0"):
        pool.step_round(1, np.zeros((3, 1), dtype=np.float32))
    with pytest.raises(ValueError, match=r"expected float32 of shape \(3, 1\), got float64 \(3, 1\)"):
        pool.step_round(0, np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"got float32 \(2, 1\)"):
        pool.step_round(0, np.zeros((2, 1), dtype=np.float32))
    with pytest.raises(ValueError, match=r"action of environment 1 is not finite: got \[nan\]"):
        pool.step_round(0, np.array([[0.0], [np.nan], [np.inf]], dtype=np.float32))
    with pytest.raises(RuntimeError, match="8 steps, only 0 were made"):
        pool.end_round()
    assert pool.sent_bytes == sent
    close(actors)


def test_a_policy_that_diverged_is_named_by_its_actor(pendulum: Served):
    """Its actions are not finite: a sweep takes that for the worst result, and no failure."""
    actors = started(pendulum)
    params = pendulum.context.algorithm.init(3).params
    with torch.inference_mode(mode=False), torch.no_grad():
        params["policy"].flat.fill_(np.nan)
    with pytest.raises(DivergedError, match="stage 0 diverged in round 0: action of environment 0 is not finite"):
        actors[0].act_round(0, params, RoundBuffers(pendulum.context, 0))
    close(actors)


def test_a_failing_environment_says_why(make_context: MakeContext, tmp_path: Path, forking: subprocess.Popen[str]):
    """The other process's error reaches the actor, and ends that process."""
    with closing(
        Served(make_context({"environment": {"id": "CartPole-v1"}}), tmp_path / "env-cache", forking)
    ) as served:
        actors = started(served)
        pool: Any = actors[0]._pool
        pool.begin_round(*(RoundBuffers(served.context, 0).arrays[name] for name in COLUMNS))
        pool.step_round(0, np.array([0, 5, 0]))
        with pytest.raises(GangError, match=r"env-0 could not step the environments of tile 0: ValueError: .*5"):
            pool.receive_step()
        assert served.wait() != 0
        close(actors)


def test_environments_are_closed_with_their_server(context: RunContext, monkeypatch: pytest.MonkeyPatch):
    """Also where a later tile can't be made: processes of environments would outlive the stage in a worker."""
    with EnvironmentServer(context, range(2), 1, "127.0.0.1", "env-0") as server:
        pools: list[Any] = [tile._pool for tile in server._tiles.values()]
    assert all(pool.closed for pool in pools)
    made: list[Any] = []

    def make(*given: Any) -> Any:
        if made:
            raise ConfigError("no second one")
        made.append(make_acting_pool(*given))
        return made[0]

    monkeypatch.setattr(stepping_server, "make_acting_pool", make)
    with pytest.raises(ConfigError, match="no second one"):
        EnvironmentServer(context, range(2), 1, "127.0.0.1", "env-0")
    assert made[0].closed
