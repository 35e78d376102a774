"""Install a server's packages into a virtual environment of its own, beside the one of the lock."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve()


class NotInstalledError(Exception):
    """Raised if the packages can't be installed here, with the reason."""


def own_environment(name: str, seconds: float) -> Path:
    """Return the folder of programs of the environment `.venv-<name>`, after installing it if needed.

    Its packages are those of `requirements-<name>.txt` beside this file. Processes that need it at once wait for one.

    Args:
        name: of the server.
        seconds: limit for each of the two commands that install it.

    Raises:
        NotInstalledError: one of them failed.
    """
    folder = HERE.parents[3] / f".venv-{name}"
    requirements = HERE.with_name(f"requirements-{name}.txt")
    wanted, done = requirements.read_text(), folder / ".ready"
    with folder.with_name(f".venv-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists() and done.read_text() == wanted:
            return folder / "bin"
        python = folder / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        for step in ([sys.executable, "-m", "venv", folder], install):
            try:
                subprocess.run(
                    [str(part) for part in step],
                    env={key: value for key, value in os.environ.items() if key != "PIP_CONSTRAINT"},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=True,
                    timeout=seconds,
                )
            except subprocess.SubprocessError as error:
                said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()[-500:]
                raise NotInstalledError(f"'{folder}' could not be made: {error} {said}") from error
        done.write_text(wanted)
    return folder / "bin"
