"""The services of deploy/compose.yaml, each in a process on a host of namespaces, and a run across them.

Two stand in for what only images bring: Debian's Postgres, and moto for the S3 gateway. All else is started by the
command and with the environment and secrets that compose.yaml gives it.
"""

from __future__ import annotations

import base64
import json
import pwd
import re
import socket
import ssl
import sys
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from distributed import Client, Security

from penstock.storage.refs import parse_shard_name

from ..support.processes.commands import wait_until
from ..support.processes.hosts import PRIVATE, Host, NoHostsError, Process, Switch
from ..support.services.compose import ROOT, Services, postgres_programs
from ..support.stored.stored_run import StoredRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

STAGES, ROUNDS, PLACES = 4, 30, 2
PRESET = f"""
    seed = 7
    [environment]
    num_envs = 8
    envs_per_tile = 4
    [algorithm]
    hidden = [8]
    epochs = 1
    minibatches = 2
    [schedule]
    round_steps = 16
    rounds_per_stage = {ROUNDS}
    max_stages = {STAGES}
    lag = 1
    evaluation_episodes = 4
    [distribution]
    act_tasks = {PLACES}
    [cluster]
    lease_seconds = 6.0
    gang_seconds = 180.0
"""
WORKER_HOSTS = ("east", "west")
# Dask's shortest time to notice that a host says nothing any more; it is 30 s unless one asks for less.
SILENCE = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s"}
BUCKET = "penstock"
PATIENCE_SECONDS = 300.0
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Deployed:
    """All services, up and ready, and what can be asked of them."""

    def __init__(self, folder: Path, switch: Switch) -> None:
        self.folder, self.switch = folder, switch
        self.services = Services(folder, {"PENSTOCK_ACTORS": str(PLACES)})
        self.hosts: dict[str, Host] = {}
        for name in ("postgres", "prefect", "s3", "scheduler", "driver"):
            self.hosts[name] = switch.host(name)
        self.store = self.services.environment("deployments")["PENSTOCK_STORE"]
        self.auth = self.services.environment("driver")["PREFECT_API_AUTH_STRING"]
        self._start_stand_ins()
        self.scheduler = self.start("scheduler", "scheduler")
        wait_until(lambda: self._answers("postgres", 5432), "Postgres", seconds=PATIENCE_SECONDS, poll_seconds=0.1)
        server = self.start("prefect", "prefect")
        wait_until(lambda: self._answers("s3", 7070), "the S3 server", seconds=PATIENCE_SECONDS, poll_seconds=0.1)
        bucket = self.start("bucket", "driver")
        wait_until(
            lambda: self._answers("scheduler", 8786),
            lambda: self.scheduler.said,
            seconds=PATIENCE_SECONDS,
            poll_seconds=0.1,
        )
        for name in WORKER_HOSTS:
            self.add_workers(name)
        bucket.succeed(PATIENCE_SECONDS)
        wait_until(
            lambda: self._answers("prefect", 4200), lambda: server.said, seconds=PATIENCE_SECONDS, poll_seconds=0.1
        )
        wait_until(self._healthy, lambda: server.said, seconds=PATIENCE_SECONDS, poll_seconds=0.1)

    def start(self, service: str, host: str) -> Process:
        """A service on a host, by its command, and again whenever it ends if it says so."""
        environment = self.services.environment(service) | SILENCE
        log = self.folder / f"{service}-{host}.log"
        command, kept = self.services.command(service), self.services.restarts(service)
        return self.hosts[host].start(command, environment, ROOT, log, kept=kept)

    def add_workers(self, host: str) -> None:
        """A new host with workers that act and one that learns; returns before they have joined."""
        self.hosts[host] = self.switch.host(host)
        for service in ("actors", "learner"):
            self.start(service, host)

    def _start_stand_ins(self) -> None:
        environment = self.services.environment("postgres")
        initdb, postgres = postgres_programs()
        user = next(each.pw_uid for each in pwd.getpwall() if each.pw_name in {"postgres", "nobody"})
        # As the image does: a superuser and a database by these names, and passwords for clients on the network.
        script = """
            printf %s "$POSTGRES_PASSWORD" > password
            "$0" --pgdata data --username "$POSTGRES_USER" --pwfile password --auth scram-sha-256 --no-sync --no-locale
            echo "create database $POSTGRES_DB" | "$1" --single -D data postgres
            echo "host all all all scram-sha-256" >> data/pg_hba.conf
            exec "$1" -D data -c listen_addresses=* -c unix_socket_directories= -c fsync=off
        """
        command, folder = ["sh", "-euc", script, initdb, postgres], PRIVATE / "tmp"
        self.hosts["postgres"].start(command, environment, folder, self.folder / "postgres.log", user=user)
        command = [sys.executable, "-W", "ignore", "tests/support/services/s3_server.py", "-H", "0.0.0.0", "-p", "7070"]
        self.hosts["s3"].start(command, self.services.environment("s3"), ROOT, self.folder / "s3.log")

    def _answers(self, host: str, port: int) -> bool:
        def connect() -> bool:
            try:
                with socket.create_connection((self.hosts[host].address, port), 1):
                    return True
            except OSError:
                return False

        return bool(self.hosts["driver"].inside(connect))

    def _healthy(self) -> bool:
        try:
            return self.ask("health") is True
        except OSError:
            return False

    def ask(self, path: str, body: Any = None, auth: str | None = None) -> Any:
        """Request something of Prefect's API, as the driver does."""
        data = None if body is None else json.dumps(body).encode()
        given = base64.b64encode((self.auth if auth is None else auth).encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {given}"}
        url = f"http://{self.hosts['prefect'].address}:4200/api/{path}"
        return json.loads(self._get(urllib.request.Request(url, data, headers)))

    def _get(self, request: urllib.request.Request | str) -> bytes:
        def get() -> bytes:
            with _DIRECTLY.open(request, timeout=30) as answer:
                return bytes(answer.read())

        return bytes(self.hosts["driver"].inside(get))

    def train(self, folder: Path, name: str, *where: str) -> Process:
        """Start `penstock train` with the small run on the driver's host."""
        (preset := folder / f"{name}.toml").write_text(PRESET)
        command = ["penstock", "train", str(preset), "--name", name, *where]
        environment = self.services.environment("driver") | SILENCE
        return self.hosts["driver"].start(command, environment, ROOT, self.folder / f"{name}.log")

    def wait_round(self, run: str, round_: int, flow: Process) -> None:
        """Wait until a shard of that round, counted over the run, is stored, while the flow runs."""

        def is_stored() -> bool:
            assert flow.running, flow.said
            return any(parse_shard_name(name).round >= round_ for name in self.stored(run, "shards"))

        wait_until(is_stored, lambda: self.said, seconds=PATIENCE_SECONDS, poll_seconds=0.1)

    def stored(self, run: str, kind: str) -> list[str]:
        """List the names in a folder of a run."""
        root = f"{self.store.removeprefix(f's3://{BUCKET}/')}/{run}/"
        listed = self._get_stored(f"{BUCKET}?list-type=2&prefix={quote(f'{root}{kind}/', safe='')}").decode()
        assert "<IsTruncated>false" in listed
        return [key.removeprefix(root) for key in re.findall("<Key>([^<]*)</Key>", listed)]

    def read(self, run: str, name: str) -> bytes:
        return self._get_stored(f"{self.store.removeprefix('s3://')}/{run}/{quote(name)}")

    def _get_stored(self, path: str) -> bytes:
        keys = self.services.environment("driver")
        request = AWSRequest("GET", f"http://{self.hosts['s3'].address}:7070/{path}")
        credentials = Credentials(keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"])
        S3SigV4Auth(credentials, "s3", keys["AWS_DEFAULT_REGION"]).add_auth(request)
        return self._get(urllib.request.Request(request.url, headers=dict(request.headers)))

    def dask(self) -> Client:
        """A client on the driver's network; to be made within `inside`."""
        files = {f"tls_client_{kind}": str(self.services.certificates / f"{kind}.pem") for kind in ("cert", "key")}
        security = Security(tls_ca_file=str(self.services.certificates / "ca.pem"), require_encryption=True, **files)
        address = f"tls://{self.hosts['scheduler'].address}:8786"
        return Client(address, security=security, timeout=30, set_as_default=False)

    def host_of(self, member: str, run: str, stage: int, flow: Process) -> str:
        """Wait until a member of a stage's gang runs, and return its worker host."""

        def find_host() -> str | None:
            with self.dask() as client:
                for address, keys in client.processing().items():
                    if any(str(key).startswith(f"{member} penstock/{run}/{stage}.") for key in keys):
                        return next(host.name for host in self.hosts.values() if f"//{host.address}:" in address)
            return None

        wait_until(
            lambda: f"stage {stage - 1:>3} " in flow.said, lambda: self.said, seconds=PATIENCE_SECONDS, poll_seconds=0.1
        )
        return str(
            wait_until(
                lambda: self.hosts["driver"].inside(find_host),
                f"{member} on a host",
                seconds=PATIENCE_SECONDS,
                poll_seconds=0.1,
            )
        )

    @property
    def said(self) -> str:
        """By all processes, the latest."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Iterator[Deployed]:
    if postgres_programs() is None:
        pytest.skip("there is no Postgres (apt-get install postgresql)")
    folder = tmp_path_factory.mktemp("cluster")
    try:
        with Switch(folder) as switch:
            yield Deployed(folder, switch)
    except NoHostsError as reason:
        pytest.skip(str(reason))


def test_connections_without_certificate_or_password_are_refused(deployed):
    """Dask's scheduler ends a connection that shows no certificate, Prefect's API one that gives another password."""
    context = ssl.create_default_context(cafile=str(deployed.services.certificates / "ca.pem"))
    context.check_hostname = False

    def speak() -> None:
        address = (deployed.hosts["scheduler"].address, 8786)
        with socket.create_connection(address, 10) as plain, context.wrap_socket(plain) as secured:
            assert secured.recv(1) == b""

    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        deployed.hosts["driver"].inside(speak)
    with pytest.raises(HTTPError, match="401"):
        deployed.ask("flow_runs/filter", {}, auth="admin:guess")


def test_a_run_outlives_hosts_and_the_scheduler(deployed, tmp_path):
    """A run across hosts ends with the bytes of one on one machine, and what its workers log is in Prefect.

    A worker host dies under it and a new one joins, another falls silent, and the scheduler is killed, all unattended.
    """
    cluster = ("--scheduler", "tls://scheduler:8786", "--cache-folder", str(PRIVATE / "cache"))
    flow = deployed.train(tmp_path, "shaken", "--store", deployed.store, *cluster)
    killed = deployed.host_of("learn-0", "shaken", 1, flow)
    deployed.wait_round("shaken", ROUNDS + 1, flow)
    deployed.hosts[killed].kill()
    deployed.add_workers("north")

    silent = deployed.host_of("learn-0", "shaken", 2, flow)
    deployed.wait_round("shaken", 2 * ROUNDS + 1, flow)
    deployed.hosts[silent].part()
    quiet = deployed.train(tmp_path, "quiet", "--store", str(PRIVATE / "runs"))

    last = deployed.host_of("learn-0", "shaken", 3, flow)
    deployed.wait_round("shaken", 3 * ROUNDS + 1, flow)
    deployed.scheduler.kill()
    flow.succeed(PATIENCE_SECONDS)

    timings = {
        int(name[8:16]): json.loads(deployed.read("shaken", name)) for name in deployed.stored("shaken", "timings")
    }
    learned_at = {stage: each["members"]["learn-0"]["host"] for stage, each in timings.items()}
    assert learned_at[1] != killed
    assert learned_at[2] == learned_at[3] == last != silent
    generations = [name[17:25] for name in deployed.stored("shaken", "timings")]
    assert generations == ["00000001"] * (STAGES - 1) + ["00000002"]
    quiet.succeed(PATIENCE_SECONDS)
    expected = StoredRun(str(deployed.hosts["driver"].private / "runs"), "quiet").content()
    names = [name for kind in ("shards", "checkpoints", "commits") for name in deployed.stored("shaken", kind)]
    assert set(names) <= expected.keys()
    assert {name: deployed.read("shaken", name) for name in expected} == expected

    (flow_run,) = deployed.ask("flow_runs/filter", {"flow_runs": {"name": {"any_": ["train shaken"]}}})
    said = deployed.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}, "limit": 200})
    assert {"act-0", "act-1", "learn-0"} <= {each["message"].split(":")[0] for each in said if each["task_run_id"]}
