"""An embedded Prefect server answers its user alone; a server that goes away costs a run nothing but its pages."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from penstock.flows.api.migrated_database import has_own_database
from penstock.flows.api.prefect_answers import require_prefect
from penstock.flows.api.prefect_server import PrefectServer, start_failure
from penstock.flows.api.prefect_watch import kept_answering
from penstock.storage.errors import PenstockError
from penstock.storage.user_config import user_secret

from ...support.processes.commands import listener, wait_until
from ...support.services.prefect_server import prefect_server
from ...support.stored.stored_run import assert_same
from ..conftest import BRIEF, Bench

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # each starts a server of its own


@pytest.fixture
def surroundings(monkeypatch, tmp_path):
    """Set the environment of a user who has set nothing."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_CONFIG_DIR", str(tmp_path / "config"))
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"):
        monkeypatch.setenv(name, "")  # so that they are restored afterwards, whatever sets them
        monkeypatch.delenv(name)


def test_an_embedded_server_answers_its_user_alone(surroundings, tmp_path):
    """Without the auth string every request is refused, also to start flow runs; `require_prefect` says what lacks."""
    with PrefectServer() as server:
        server.wait_ready()
        for path, body in (("flow_runs/filter", {}), ("work_pools/", {"name": "mine", "type": "process"})):
            request = urllib.request.Request(
                f"{server.api_url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=150)
            assert refused.value.code == 401
            refused.value.close()
        with pytest.raises(PenstockError, match="PREFECT_API_AUTH_STRING"):
            require_prefect(server.api_url)
        assert server.auth_string == (tmp_path / "config" / "prefect-auth").read_text()
        assert str(tmp_path / "config" / "prefect-auth") in server.sign_in
        server.direct_here()
        require_prefect(os.environ["PREFECT_API_URL"])


def test_a_server_has_its_port_before_it_listens(surroundings):
    """Nothing else gets the port while the server imports; a port that something has is refused at once."""
    with PrefectServer() as server:
        port = int(server.ui_url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port))
        server.wait_ready()
        with pytest.raises(PenstockError, match=f"port {port} .* choose another port"):
            PrefectServer(port)


def test_a_server_that_is_too_busy_to_answer_is_asked_again(surroundings, monkeypatch):
    """The first request gets no answer, the next ones do: only a server that stays silent is refused."""
    monkeypatch.setattr("penstock.flows.api.prefect_answers._ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as busy:

        def serve() -> None:
            silent, _ = busy.accept()
            with silent, suppress(OSError):  # the listener is closed
                while True:
                    answered, _ = busy.accept()
                    with answered:
                        answered.recv(4096)
                        answered.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        require_prefect(f"http://127.0.0.1:{busy.getsockname()[1]}/api")
        busy.shutdown(socket.SHUT_RDWR)
    monkeypatch.setattr("penstock.flows.api.prefect_answers._BUSY_SECONDS", 1.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(PenstockError, match="no Prefect server answers: timed out"),
    ):
        require_prefect(f"http://127.0.0.1:{silent.getsockname()[1]}/api")


SERVER = """
from penstock.flows.api.prefect_server import PrefectServer
with PrefectServer() as server:
    server.wait_ready()
    print("ready", flush=True)
"""


def test_servers_that_start_at_once_share_a_new_home(surroundings):
    """One creates the database in Prefect's folder, the others wait for it: all become ready."""
    program = [sys.executable, "-c", SERVER]
    servers = [subprocess.Popen(program, env=os.environ, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [server.communicate()[0] for server in servers] == ["ready\n"] * 3


def test_a_new_home_begins_with_a_kept_database(surroundings, monkeypatch, tmp_path):
    """Migrations run once a version of Prefect: the kept database has what they make, and nothing that was recorded."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    with PrefectServer() as first:
        first.wait_ready()
    (kept,) = (tmp_path / "cache").glob("prefect-*.db")
    assert kept.stat().st_mode & 0o777 == 0o600
    tables = _rows_by_table(kept)
    assert tables["block_type"] > 0
    assert tables["flow_run"] == tables["configuration"] == tables["log"] == 0

    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "second"))
    with PrefectServer() as second:
        # Before the server has had the time to make one.
        assert _rows_by_table(tmp_path / "second" / "prefect.db") == tables
        second.wait_ready()
        second.direct_here()
        created = urllib.request.Request(
            f"{second.api_url}/flows/", b'{"name": "recorded"}', {"Content-Type": "application/json"}
        )
        credentials = base64.b64encode(second.auth_string.encode()).decode()
        created.add_header("Authorization", f"Basic {credentials}")
        with urllib.request.urlopen(created, timeout=150):
            pass
    assert _rows_by_table(kept) == tables
    assert _rows_by_table(tmp_path / "second" / "prefect.db")["flow"] == 1

    (configured := tmp_path / "third").mkdir()
    (configured / "profiles.toml").write_text("")
    assert has_own_database(configured)  # it may say that the database is elsewhere


def _rows_by_table(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(database)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in names}


def test_the_reason_of_a_failed_start_is_its_exception():
    """Not the server's last line, which only says that it failed."""
    said = (
        "ERROR:    Traceback (most recent call last):\n  File server.py\n"
        "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) database is locked\n"
        "ERROR:    Application startup failed. Exiting.\n"
    )
    assert start_failure(said) == "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) database is locked"
    assert start_failure("port taken\n") == "port taken"
    assert start_failure("") == "no output"


STARTING = """
import sys
from prefect import flow
from penstock.flows.api.drive import _LimitedPanel, _result_of
from penstock.flows.display.console import Panel

class Printing(Panel):
    def note(self, text):
        print(text, flush=True)

@flow
def nothing(config, if_exists):
    return "done"

print(_result_of(nothing, None, "refuse", _LimitedPanel(Printing(), None)), flush=True)
"""


def test_a_server_that_is_restarted_is_waited_for_at_the_start(surroundings):
    """A flow that can't begin for want of an answer begins when the server is back."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    auth_string, _ = user_secret("prefect-auth")
    address = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PREFECT_API_AUTH_STRING": auth_string}
    environment = {**os.environ, **address}
    program = [sys.executable, "-c", STARTING]
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True) as starting:
        assert starting.stdout is not None
        try:
            assert "waiting for it" in starting.stdout.readline()
            with PrefectServer(port) as server:
                server.wait_ready()
                assert starting.stdout.readline() == "done\n"
        finally:
            starting.kill()


COLLECTING = """
import os, sys, threading, time, uvicorn
from penstock.flows.api.serve_prefect import main

class Cyclic:
    def __init__(self):
        self.self = self
    def __del__(self):
        threads.add(threading.current_thread().name)
        global left
        left -= 1

def run(server, sockets):
    for _ in range(left):
        Cyclic()
    give_up_at = time.monotonic() + 60
    while left and time.monotonic() < give_up_at:
        time.sleep(0.01)
    print(*threads)
    server.started = True

threads, left, uvicorn.Server.run = set(), 10_000, run
sys.argv[1:] = [str(os.getppid()), sys.argv[1]]
main()
"""


def test_a_server_collects_its_garbage_beside_its_event_loop(surroundings):
    """A collection may wait for the database's lock, which the event loop's next step would free."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        program = [sys.executable, "-c", COLLECTING, str(number)]
        said = subprocess.run(program, env=os.environ, pass_fds=[number], stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout == "garbage\n"


def test_a_server_that_hangs_or_ends_is_restarted(surroundings, caplog):
    """While deployments are served, a stopped and a killed server are replaced on the same port, with the same data."""
    with PrefectServer() as server:
        server.wait_ready()
        server.direct_here()
        port = int(server.ui_url.rpartition(":")[2])
        pool = json.dumps({"name": "mine", "type": "process"}).encode()
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Basic {base64.b64encode(server.auth_string.encode()).decode()}",
        }
        with urllib.request.urlopen(
            urllib.request.Request(f"{server.api_url}/work_pools/", pool, headers), timeout=60
        ) as made:
            assert made.status == 201
        with kept_answering(server, silent_seconds=1.0, poll_seconds=0.1):
            for sent, said in ((signal.SIGSTOP, "gave no answer for"), (signal.SIGKILL, "ended with status -9")):
                before = wait_until(lambda: listener(port), "a server")
                os.kill(before, sent)
                # Others may be logged: a busy machine's server is waited for, or silent without being stopped.
                wait_until(lambda expected=said: any(expected in line for line in caplog.messages), f"'{said}'")
                require_prefect(server.api_url)
                assert listener(port) not in {None, before}
                again = urllib.request.Request(f"{server.api_url}/work_pools/mine", headers=headers)
                with urllib.request.urlopen(again, timeout=150) as found:
                    assert json.loads(found.read())["name"] == "mine"


def test_a_run_finishes_without_its_server(cluster, flow_environment, references, tmp_path, pytestconfig):
    """The server is killed after the first stage: the same bytes, exit status 0, and the result is printed."""
    with prefect_server(tmp_path, pytestconfig.rootpath / "build" / "tests") as url:
        bench = Bench(tmp_path, {**flow_environment, "PREFECT_API_URL": url}, cluster.address)
        try:
            flow, run = bench.train("alone", BRIEF), bench.run("alone")
            run.wait_for_commit(0, flow)
            server = listener(int(url.split(":")[2].partition("/")[0]))
            assert server is not None
            os.kill(server, signal.SIGKILL)
            said = flow.succeed()
        finally:
            bench.close()
    assert "(max_stages 2 done)" in said
    assert_same(run, references.content(BRIEF))
