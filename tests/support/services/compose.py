"""Run the services of deploy/compose.yaml as processes, with its commands, environment and secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import yaml

from penstock import tasks

from ..processes.hosts import PRIVATE

ROOT = Path(tasks.__path__[0]).resolve().parent
_VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")
# What the image says, and where a process finds what a container has at fixed paths.
_EVERYWHERE = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PYTHONUNBUFFERED": "1",
    "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": str(PRIVATE / "home"),
    "TMPDIR": str(PRIVATE / "tmp"),
    "LANG": "C.UTF-8",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Services:
    """The services that compose.yaml describes, with secrets that deploy/make_secrets.sh has made in a copy of deploy/.

    Args:
        folder: the folder of the copy.
        variables: entries of deploy/.env in addition to those of make_secrets.sh.
    """

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._deploy = folder / "deploy"
        copytree(ROOT / "deploy", self._deploy, ignore=lambda _, names: {"secrets", ".env"} & set(names))
        subprocess.run([self._deploy / "make_secrets.sh"], check=True, capture_output=True, timeout=150)
        self._variables = {**_lines(self._deploy / ".env"), **variables}
        self._described = yaml.safe_load((self._deploy / "compose.yaml").read_text(encoding="utf-8"))["services"]
        self.certificates = self._deploy / "secrets/tls"
        # As deploy/README.md says: the folder that DASK_CONFIG names.
        settings = (self._deploy / "tls/dask.yaml").read_text().replace("/etc/dask/tls", str(self.certificates))
        (self.certificates / "dask.yaml").write_text(settings)

    def command(self, service: str) -> list[str]:
        """Return a service's command, with a host's folders in place of the container's."""
        return [_at_host(self._interpolated(word)) for word in self._described[service]["command"]]

    def environment(self, service: str) -> dict[str, str]:
        """Return a service's environment: from the image, the file, its secrets and its certificates."""
        described = self._described[service]
        environment = dict(_EVERYWHERE)
        for entry in described.get("env_file", ()):
            environment |= _lines(self._deploy / entry["path"])
        for name, value in described.get("environment", {}).items():
            environment[name] = _at_host(self._interpolated(value))
        if "secrets" in described:
            environment["DASK_CONFIG"] = str(self.certificates)
        return environment

    def restarts(self, service: str) -> bool:
        """Return whether the service is restarted whenever it ends."""
        return bool(self._described[service]["restart"] == "unless-stopped")

    def _interpolated(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            return self._variables.get(found[1]) or found[2] or ""

        return _VARIABLE.sub(value, text).replace("$$", "$")


def _at_host(text: str) -> str:
    return re.sub(r"(?<![\w/])/(tmp|cache)\b", str(PRIVATE / r"\1"), text)


def _lines(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def postgres_programs() -> tuple[str, str] | None:
    """Return the paths of `initdb` and `postgres`, or None without Postgres."""
    for folder in (*os.environ["PATH"].split(":"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))[::-1]):
        initdb, postgres = (Path(folder) / name for name in ("initdb", "postgres"))
        if initdb.exists() and postgres.exists():
            return str(initdb), str(postgres)
    return None
