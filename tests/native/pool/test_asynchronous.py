"""Asynchronous stepping: every environment goes through what it would alone, and nothing is lost on the way."""

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import native
from penstock.native import _core

HERE = Path(__file__).parents[1]
ENVIRONMENTS = ["CartPole-v1", "Pendulum-v1"]


@pytest.fixture(scope="module")
def fuse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of Fuse, which fails with action 2 and takes `toil_us` microseconds a step; loaded here."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "the package is built from C++; so is this environment: install a compiler or set CXX"
    library = tmp_path_factory.mktemp("fuse") / "fuse.so"
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", "-pthread", "-I", str(Path(native.__file__).parent / "include")]
    subprocess.run([compiler, *flags, str(HERE / "fuse.cpp"), "-o", str(library)], check=True)
    assert _core.load_library(str(library)) == ["Fuse"]
    return library


def script(text: str, library: Path) -> list[str]:
    return [
        sys.executable,
        "-c",
        f"from penstock import native\nfrom penstock.native import _core\n_core.load_library({str(library)!r})\n{text}",
    ]


def actions_of(pool: native.Pool, env_ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the action of each environment in its own n-th step, whenever that comes."""
    space = pool.single_action_space
    turns = [(7 * int(env) + 3 * int(counts[env])) % 11 for env in env_ids]
    if pool.environment["action"]["kind"] == "discrete":
        return np.array(turns) % space.n
    return np.array([np.full(space.shape, turn / 3 - 2, np.float32) for turn in turns])


def rows_of(batch: tuple[Any, ...], row: int) -> list[Any]:
    """One environment's part of a batch, infos included, but for the seconds that an episode took."""
    infos = {name: value for name, value in batch[4].items() if name != "env_id"}
    episode = infos.pop("episode", None)
    infos_of_row = [(name, str(infos[name][row])) for name in sorted(infos) if not isinstance(infos[name], dict)]
    if episode is not None:
        infos_of_row.append(("episode", f"{episode['r'][row]} {episode['l'][row]}"))
    infos_of_row = [pair for pair in infos_of_row if pair[1] not in {"False", "None", "0.0 0"}]
    return [batch[0][row].tobytes(), *(float(array[row]) for array in batch[1:4]), infos_of_row]


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
@pytest.mark.parametrize("autoreset_mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_asynchronous_equals_synchronous(env_id: str, autoreset_mode: str, deterministic: bool, num_threads: int):
    """Seed for seed and action for action, each environment gives the same rows and infos as a pool that steps all."""
    options = {
        "max_episode_steps": 25,
        "autoreset_mode": autoreset_mode,
        "record_episode_statistics": True,
        "gravity": np.linspace(9.0, 11.0, 12),
    }
    if env_id == "Pendulum-v1":
        options["g"] = options.pop("gravity")
    pool = native.make(env_id, 12, num_threads, batch_size=4, deterministic=deterministic, **options)
    ours: dict[int, list[Any]] = defaultdict(list)
    counts = np.zeros(12, np.int64)
    pool.async_reset(seed=5)
    for _ in range(150):
        batch = pool.recv()
        env_ids = batch[4]["env_id"]
        assert env_ids.shape == (4,)
        assert batch[0].shape == (4, *pool.single_observation_space.shape)
        for row, env in enumerate(env_ids.tolist()):
            ours[env].append(rows_of(batch, row))
        pool.send(actions_of(pool, env_ids, counts), env_ids)
        counts[env_ids] += 1

    together = native.make(env_id, 12, **options)
    observation, infos = together.reset(seed=5)
    zeros = np.zeros(12)
    theirs = [(observation, zeros, zeros, zeros, infos)]
    theirs += [together.step(actions_of(together, np.arange(12), np.full(12, n))) for n in range(counts.max())]
    for env, rows in ours.items():
        assert rows == [rows_of(batch, env) for batch in theirs[: len(rows)]]
    assert sum(len(rows) for rows in ours.values()) == 150 * 4


def test_deterministic_batches_rotate_for_any_number_of_threads():
    """Batches hold [0, k), [k, 2k), ... in order, and are equal bit for bit for 1 and for 5 threads."""
    runs = []
    for num_threads in (1, 2, 5):
        pool = native.make("CartPole-v1", 20, num_threads, batch_size=5, deterministic=True)
        pool.async_reset(seed=3)
        run = []
        for turn in range(120):
            observation, reward, terminated, truncated, infos = pool.recv()
            assert infos["env_id"].tolist() == list(range(turn % 4 * 5, turn % 4 * 5 + 5))
            run.append((observation.tobytes(), reward.tobytes(), terminated.tobytes(), truncated.tobytes()))
            pool.send((observation[:, 2] > 0).astype(np.int64))
        runs.append(run)
    assert runs[0] == runs[1] == runs[2]


def test_batches_that_are_kept_are_not_overwritten():
    """Arrays from recv stay as they were, however many batches follow."""
    pool = native.make("CartPole-v1", 8, 2, batch_size=2)
    pool.async_reset(seed=0)
    kept = []
    for _ in range(40):
        batch = pool.recv()
        kept.append((batch, [array.copy() for array in (*batch[:4], batch[4]["env_id"])]))
        pool.send(np.ones(2, np.int64))
    for batch, copies in kept:
        for array, copy in zip((*batch[:4], batch[4]["env_id"]), copies, strict=True):
            assert np.array_equal(array, copy)


def test_slow_environment_holds_nobody_back(fuse: Path):
    """Batches are filled in order of completion: while one environment is being stepped, they hold the others."""
    pool = native.make("Fuse", 6, 3, batch_size=2, toil_us=[-1, 0, 0, 0, 0, 0])
    library = ctypes.CDLL(str(fuse))
    library.hold_fuse(1)

    def play() -> list[int]:
        env_ids = pool.recv()[4]["env_id"]
        pool.send(np.ones(2, np.int64), env_ids)
        return list(env_ids)

    try:
        pool.async_reset(seed=0)
        deadline = time.monotonic() + 150
        while not library.fuse_steps_held():  # this thread may step the slow one meanwhile, which is not slow to it
            assert time.monotonic() < deadline
            play()
        seen = {env for _ in range(90) for env in play()}
    finally:
        library.hold_fuse(0)
    assert seen == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_failure_comes_out_of_recv_and_nothing_else_is_lost(fuse: Path, deterministic: bool, num_threads: int):
    """The error names the environment; after a reset of that one alone the pool continues."""
    pool = native.make("Fuse", 4, num_threads, batch_size=2, deterministic=deterministic, length=100)
    pool.async_reset(seed=0)
    first, second = pool.recv()[4]["env_id"].tolist()
    pool.send([1, 2], [first, second])

    def receive_on() -> None:
        while True:
            env_ids = pool.recv()[4]["env_id"].tolist()
            if not deterministic:
                pool.send([1, 1], env_ids)

    with pytest.raises(RuntimeError, match=f"environment {second} of Fuse failed: the fuse blew"):
        receive_on()
    with pytest.raises(RuntimeError, match=f"environment {second} is not ready"):
        pool.send([1], [second])
    pool.async_reset(env_ids=[second])
    if deterministic:
        assert pool.recv()[4]["env_id"].tolist() == [0, 1]
    for _ in range(5):
        pool.async_reset(seed=1)
        assert sorted(pool.recv()[4]["env_id"].tolist() + pool.recv()[4]["env_id"].tolist()) == [0, 1, 2, 3]


def test_failures_of_a_rotation_come_in_their_turn(fuse: Path):
    """The first of several failures by number is reported when its batch's turn comes, whenever they happened."""
    for _ in range(20):
        pool = native.make("Fuse", 6, 3, batch_size=3, deterministic=True, length=100, toil_us=[500, 0, 0, 0, 500, 0])
        pool.async_reset(seed=0)
        pool.recv()
        pool.recv()
        pool.send([1, 1, 1, 2, 2, 1], np.arange(6))
        assert pool.recv()[4]["env_id"].tolist() == [0, 1, 2]
        pool.send([2, 2, 1], [0, 1, 2])
        for env in (3, 4):
            with pytest.raises(RuntimeError, match=f"environment {env} of Fuse failed: the fuse blew"):
                pool.recv()
        with pytest.raises(RuntimeError, match="waits for environments 3 to 5 but 3 is not under way"):
            pool.recv()
        pool.async_reset(env_ids=[3, 4])
        assert pool.recv()[4]["env_id"].tolist() == [3, 4, 5]
        for env in (0, 1):
            with pytest.raises(RuntimeError, match=f"environment {env} of Fuse failed: the fuse blew"):
                pool.recv()


def test_misuse_is_refused():
    """Impossible arguments are refused with the number of the environment, and nothing is sent."""
    pool = native.make("CartPole-v1", 6, 2, batch_size=3)
    with pytest.raises(RuntimeError, match="async_reset\\(\\) first"):
        pool.recv()
    with pytest.raises(RuntimeError, match="async_reset\\(\\) first"):
        pool.send([1, 1, 1])
    pool.async_reset(seed=0)
    with pytest.raises(RuntimeError, match="give env_ids"):
        pool.send([1, 1, 1])
    with pytest.raises(ValueError, match="environment 2 is under way"):
        pool.send([1], [2])
    with pytest.raises(ValueError, match="environment 4 is under way"):
        pool.async_reset(env_ids=[4])
    for call in (lambda: pool.step(np.ones(6, np.int64)), pool.save, lambda: pool.observation):
        with pytest.raises(RuntimeError, match="6 environments are under way"):
            call()
    env_ids = pool.recv()[4]["env_id"].tolist()
    with pytest.raises(ValueError, match=f"environment {env_ids[0]} is named twice"):
        pool.send([1, 1], [env_ids[0], env_ids[0]])
    with pytest.raises(ValueError, match="6 is not one of 0 to 5"):
        pool.send([1], [6])
    with pytest.raises(ValueError, match="-1 is not one of 0 to 5"):
        pool.send([1], [-1])
    with pytest.raises(ValueError, match=r"env_ids: expected integers \[rows\], got float64"):
        pool.send([1], [1.0])
    with pytest.raises(ValueError, match=r"expected integers of shape \(3,\) as actions, got int64 of \(2,\)"):
        pool.send(np.array([1, 1]), env_ids)
    with pytest.raises(ValueError, match=f"action 2 of environment {env_ids[1]} is out of range"):
        pool.send([1, 2, 1], env_ids)
    pool.recv()
    with pytest.raises(RuntimeError, match="waits for 3 environments but 0 are under way"):
        pool.recv()
    pool.send([1, 1], env_ids[:2])
    with pytest.raises(RuntimeError, match="waits for 3 environments but 2 are under way"):
        pool.recv()
    pool.reset(seed=1)
    assert pool.step(np.ones(6, np.int64))[1].tolist() == [1.0] * 6
    with pytest.raises(ValueError, match="batch_size is 7, expected at most num_envs, 6"):
        native.make("CartPole-v1", 6, batch_size=7)
    with pytest.raises(ValueError, match="batch_size is 4, expected at most num_envs that divides it, 6"):
        native.make("CartPole-v1", 6, batch_size=4, deterministic=True)


def test_synchronous_after_asynchronous():
    """A full reset gives up what is under way; the pool then steps as one that never did anything else."""
    pool, other = native.make("CartPole-v1", 9, 2, batch_size=4), native.make("CartPole-v1", 9)
    for seed in range(20):
        pool.async_reset(seed=seed)
        pool.send(np.ones(4, np.int64), pool.recv()[4]["env_id"])
        assert np.array_equal(pool.reset(seed=seed)[0], other.reset(seed=seed)[0])
        for _ in range(3):
            assert np.array_equal(pool.step(np.ones(9, np.int64))[0], other.step(np.ones(9, np.int64))[0])


@pytest.mark.parametrize("seed", [np.uint8(250), np.int32(2**31 - 3), np.int64(2**63 - 3)])
def test_seeds_of_numpys_types_do_not_overflow(seed: np.integer):
    """Environment i gets the seed `seed + i` in both APIs, also where NumPy's type ends before."""
    pool = native.make("CartPole-v1", 9, deterministic=True)
    pool.async_reset(seed=seed)
    assert np.array_equal(pool.recv()[0], native.make("CartPole-v1", 9).reset(seed=int(seed))[0])


def test_closing_with_environments_under_way(fuse: Path):
    """close() ends the threads when they are done with the step that they are in; then every call says so."""
    pool = native.make("Fuse", 40, 3, batch_size=4, toil_us=2000)
    pool.async_reset(seed=0)
    for _ in range(10):
        pool.recv()
    pool.send(np.ones(4, np.int64))
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.recv()


@pytest.mark.parametrize("call", ["recv", pytest.param("step", marks=pytest.mark.slow)])
def test_interrupt(fuse: Path, call: str):
    """Ctrl-C ends a long wait at once: recv loses nothing, and a step that is given up asks for a reset."""
    text = f"""
import ctypes, os, signal, threading, time
import numpy as np

library = ctypes.CDLL({str(fuse)!r})
# To step all takes ten seconds; a batch is not received while one of it is held.
toil_us, under_way = {{"recv": (-1, library.fuse_steps_held), "step": (100_000, library.fuse_steps_begun)}}[{call!r}]
library.hold_fuse(1)

def interrupt():
    while not under_way():
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

pool = native.make("Fuse", 200, 2, batch_size=200, toil_us=toil_us, length=100)
ones = np.ones(200, np.int64)
if {call!r} == "recv":
    pool.async_reset(seed=0)
    pool.recv()
else:
    pool.reset(seed=0)
threading.Thread(target=interrupt).start()
try:
    while {call!r} == "recv":
        pool.send(ones)
        pool.recv()
    else:
        pool.step(ones)
except KeyboardInterrupt:
    if {call!r} == "recv":
        assert pool._core.under_way == 200
        library.hold_fuse(0)
        assert pool.recv()[4]["env_id"].shape == (200,)
    else:
        try:
            pool.observation
        except RuntimeError as error:
            assert "not every environment is ready" in str(error)
        else:
            raise AssertionError("the step was finished first")
        pool.reset(seed=0)
    pool.configure(toil_us=0)
    pool.step(ones)
    print("interrupted")
"""
    ran = subprocess.run(script(text, fuse), capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr


def test_forked_child_is_reported(fuse: Path):
    """Threads do not survive a fork: the child's calls say so and its exit does not hang; the parent continues."""
    text = """
import os
import numpy as np
pool = native.make("CartPole-v1", 8, 3, batch_size=4)
alone = native.make("CartPole-v1", 8, 1, batch_size=4)
for one in (pool, alone):
    one.async_reset(seed=0)
    one.recv()
child = os.fork()
if child == 0:
    for call in (lambda: pool.send([1] * 4), pool.recv, pool.async_reset):
        try:
            call()
        except RuntimeError as error:
            assert "do not survive a fork" in str(error)
        else:
            os._exit(1)
    alone.send([1] * 4)
    alone.recv()
    pool.close()
    del pool
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
pool.send([1] * 4)
assert pool.recv()[0].shape == (4, 4)
print("done")
"""
    command = script(text, fuse)
    ran = subprocess.run(
        [command[0], "-W", "ignore", *command[1:]], capture_output=True, text=True, timeout=150, check=False
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")


@pytest.mark.parametrize("batch_size", [None, 2])
def test_pinned_threads_are_on_cpus_that_may_be_used(batch_size: int | None):
    """thread_affinity keeps each thread but the caller's on one CPU of the process's own; results are the same."""

    def tasks() -> set[int]:
        return {int(task.name) for task in Path("/proc/self/task").iterdir()}

    allowed, before = os.sched_getaffinity(0), tasks()
    pool = native.make("CartPole-v1", 8, 3, thread_affinity=True, batch_size=batch_size)
    pool.async_reset(seed=0)
    pool.recv()
    started = tasks() - before
    assert len(started) == 5  # two besides the caller for either way to step, one in the caller's place
    for task in started:
        assert len(os.sched_getaffinity(task)) == 1
        assert os.sched_getaffinity(task) <= allowed
    assert os.sched_getaffinity(0) == allowed
