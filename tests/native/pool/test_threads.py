"""Threads at their limits: a process that ends while one is at work, and a system that starts no more of them."""

import subprocess
import sys
from pathlib import Path

import pytest

END = """
import sys
import threading
import numpy as np
from penstock import native
from penstock.native import _core, _learner
from penstock.native.floorplan import anneal as search, generate_block, open_placement

pool = native.make("CartPole-v1", 20_000, 2)
pool.reset(seed=0)
actions = np.ones(20_000, np.int64)


def step():
    pool.step(actions)


def recv():
    if not pool._core.under_way:
        pool.async_reset()
    pool.send(actions, pool.recv()[4]["env_id"])


numbers = np.arange(8)
noise = np.empty((100, 8, 64), np.float32)


def fill_noise():
    _core.fill_noise("normal", 0, 0, numbers, 0, noise)


weight, bias, rows = (np.ones(shape, np.float32) for shape in ((64, 64), 64, (2048, 64)))
network = _learner.Network(0, [64, 64], [weight.ctypes.data, bias.ctypes.data], True)
outputs = np.empty_like(rows)


def forward():
    network.forward(rows.ctypes.data, len(rows), 0, outputs.ctypes.data)


plc = open_placement(*generate_block(sys.argv[1]))


def get_costs():
    plc.get_costs()


def anneal():
    search(plc, moves=20_000)


def work():
    while True:
        {what}()
        began.set()


began = threading.Event()
threading.Thread(target=work, daemon=True).start()
began.wait()
print("done")
"""

FEW = """
import resource
from penstock import native

with open("/proc/self/status") as status:
    used = next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, ((used << 10) + (1 << 26),) * 2)
for options in ({}, {"batch_size": 1}):
    try:
        native.make("CartPole-v1", 500, 500, **options).close()
    except RuntimeError as error:
        print(error)
pool = native.make("CartPole-v1", 500, 2)
pool.reset(seed=0)
print(pool.step([1] * 500)[1].sum())
"""


def ran(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.parametrize("what", ["step", "recv", "fill_noise", "forward", "get_costs", "anneal"])
def test_a_process_ends_while_a_thread_is_at_work(what: str, tmp_path: Path):
    """A daemon thread that comes back from C++ while Python shuts down does not turn the end into an abort."""
    ended = ran(END.replace("{what}", what), str(tmp_path))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
def test_too_many_threads_are_refused_by_their_number():
    """A system that starts no more threads is reported with the setting to change, and the started ones are gone."""
    few = ran(FEW)
    *refused, stepped = few.stdout.splitlines()
    assert stepped == "500.0", few.stderr
    assert len(refused) == 2
    for message in refused:
        assert message.startswith("num_threads is 500, but the system starts no thread after ")
        assert message.endswith("make the pool with fewer, or raise the limits of the system")
