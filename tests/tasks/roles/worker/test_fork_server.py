"""The process from which workers are forked: it outlives the folder in which it started."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing
import os
import sys
from pathlib import Path

from penstock.tasks.roles.worker.fork_server import start_fork_server, stop_fork_server

if __name__ == "__main__":
    first, second = map(Path, sys.argv[1:])
    os.chdir(first)
    start_fork_server()
    os.chdir(second)
    first.rmdir()
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(pool.apply(os.getcwd))
    stop_fork_server()
"""


@pytest.mark.slow
def test_workers_start_though_the_folder_in_which_their_server_started_was_removed(tmp_path: Path) -> None:
    script, first, second = tmp_path / "script.py", tmp_path / "first", tmp_path / "second"
    script.write_text(SCRIPT)
    first.mkdir()
    second.mkdir()
    command = [sys.executable, str(script), str(first), str(second)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(second)]
    assert done.stderr == ""
