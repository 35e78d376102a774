"""Workers of a run's own, which are forked from one process."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, os
import penstock.tasks.roles.worker.entrypoint
from penstock.tasks.driver.cluster import connected
from penstock.tasks.setup.config.loading import build_config, load_preset

def look():
    import os, sys
    from penstock.tasks.roles.worker import member
    return os.getppid(), os.environ.get("LATE"), os.environ.get("PYTHONSAFEPATH"), member.__file__

if __name__ == "__main__":
    told = []
    for late in ("first", "second"):
        os.environ["LATE"] = late
        config = build_config(load_preset("cartpole"))
        with connected(config.make_policy(), config.cluster) as clusters:
            (client,) = (cluster.client for cluster in clusters.every)
            told.append(list(client.run(look).values()))
    import sys
    print(json.dumps([told, "pandas" in sys.modules]))
"""


def test_workers_have_the_flows_environment_and_penstocks_modules(tmp_path):
    """Also those of a second run of the same process, and where the folder holds modules that are called as ours.

    The flow's process imports nothing on the workers' behalf, such as pandas.
    """
    program, folder = tmp_path / "program" / "two_runs.py", tmp_path / "folder"
    for path in (program, folder / "tasks" / "__init__.py", folder / "storage.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('this is not ours')")
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (first, second), with_pandas = json.loads(done.stdout)
    assert not with_pandas
    assert len({parent for parent, *_ in first + second}) == 1
    assert {late for _, late, *_ in first} == {"first"}
    assert {late for _, late, *_ in second} == {"second"}
    assert not any(safe for *_, safe, _ in first + second)


LOGGING = """
import logging
from penstock.tasks.driver.cluster import connected
from penstock.tasks.setup.config.loading import build_config, load_preset

def log():
    for number in range(1500):
        logging.getLogger("distributed.worker").info("stage %d", number)

if __name__ == "__main__":
    config = build_config(load_preset("cartpole"))
    with connected(config.make_policy(), config.cluster) as clusters:
        (client,) = (cluster.client for cluster in clusters.every)
        client.run(log)
        print({len(records) for records in client.get_worker_logs().values()})
"""


def test_workers_keep_the_last_log_records_alone(tmp_path):
    """A record for each stage would otherwise add up, over a run of days, to memory that nobody reads."""
    (tmp_path / "logging_run.py").write_text(LOGGING)
    done = subprocess.run([sys.executable, "logging_run.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["{1000}"]


LOSING = """
import os
from penstock.tasks.driver import cluster
from penstock.tasks.setup.config.loading import build_config, load_preset

class Ends:
    def __reduce__(self):
        return os._exit, (1,)  # the worker that unpickles it

if __name__ == "__main__":
    cluster.entrypoint.warm_up = Ends()
    config = build_config(load_preset("cartpole"))
    with cluster.connected(config.make_policy(), config.cluster) as clusters:
        (client,) = (cluster.client for cluster in clusters.every)
        print(client.submit(int, "7").result())
"""


def test_a_worker_that_is_lost_while_it_starts_is_replaced(tmp_path):
    """Every worker ends while it warms up: the run's cluster is there nevertheless, with workers that compute."""
    (program := tmp_path / "losing.py").write_text(LOSING)
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


PREPARED = """
import logging, os, signal
from penstock.tasks.driver import cluster
from penstock.tasks.setup.config.loading import build_config, load_preset

def found():
    filters = [one.__name__ for one in logging.getLogger("distributed.worker").filters]
    return filters, signal.getsignal(signal.SIGINT) == signal.SIG_IGN, os.getpid()

if __name__ == "__main__":
    cluster.entrypoint.warm_up = int
    config = build_config(load_preset("cartpole"))
    with cluster.connected(config.make_policy(), config.cluster) as clusters:
        (client,) = (cluster.client for cluster in clusters.every)
        client.wait_for_workers(2)
        before = client.run(found)
        pids = [pid for *_, pid in before.values()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        after = [client.submit(found, pure=False).result()]
    assert len(pids) == 2
    for filters, is_ignored, pid in [*before.values(), *after]:
        assert (filters, is_ignored) == (["is_unreported"], True), (before, after)
    print(after[0][2] in pids)
"""


def test_a_worker_is_prepared_before_it_joins_and_again_when_it_is_replaced(tmp_path):
    """It ignores Ctrl-C and drops Dask's tracebacks from its first message on, whether or not it has warmed up."""
    (program := tmp_path / "prepared.py").write_text(PREPARED)
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


STRANGERS = """
import dask
from distributed import Client
from distributed.security import Security
from penstock.tasks.driver.cluster import connected
from penstock.tasks.setup.config.loading import build_config, load_preset

def refused(address, **options):
    try:
        Client(address, timeout=3, **options)
    except OSError:
        return True

if __name__ == "__main__":
    config = build_config(load_preset("cartpole"))
    dask.config.set({"distributed.comm.retry.count": 0})
    with connected(config.make_policy(), config.cluster) as clusters:
        (cluster,) = clusters.every
        port = cluster.address.rpartition(":")[2]
        assert cluster.client.submit(sum, [1, 2]).result() == 3
        assert refused(f"tcp://127.0.0.1:{port}")
        assert refused(f"tls://127.0.0.1:{port}", security=Security.temporary())
        for worker in cluster.client.scheduler_info()["workers"]:
            assert refused(worker, security=Security.temporary())
    print("all were refused")
"""


def test_workers_on_this_machine_accept_only_their_run(tmp_path):
    """A client without TLS, or with a certificate of its own, can't run code in another user's run."""
    (program := tmp_path / "strangers.py").write_text(STRANGERS)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all were refused\n"


ELSEWHERE = """
import socket
from penstock.storage.errors import GangRefusedError
from penstock.tasks.driver import cluster

cluster._CONNECT_SECONDS = 1
with socket.create_server(("127.0.0.1", 0)) as server:
    try:
        with cluster.connected_to(f"tcp://127.0.0.1:{server.getsockname()[1]}"):
            print("connected")
    except GangRefusedError as error:
        print(error)
"""


def test_a_server_that_is_no_scheduler_is_named(tmp_path):
    """A client of Dask goes on trying, and does not let its process end, where another kind of server listens."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no Dask scheduler answered at 'tcp://127.0.0.1:"), done.stdout
    assert "within 1 s" in done.stdout
