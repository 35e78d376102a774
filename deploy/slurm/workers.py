"""Start a Dask cluster on Slurm: the scheduler in this process, on a login or head node, and a job per worker.

    export DASK_CONFIG=$PWD/tls                              # deploy/README.md: Certificates for Dask
    python deploy/slurm/workers.py --actor-jobs 4 --actor-places 16 --learner-gres gpu:1 --interface ib0
    penstock train cartpole --scheduler tls://10.0.0.1:8786 --store /scratch/runs      # elsewhere, same DASK_CONFIG

This environment, DASK_CONFIG, and the store if it is a folder must have the same path on all nodes. Ctrl-C cancels the
jobs. A job that reaches its walltime is not restarted. `--show` prints the job scripts and submits nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from typing import Any

_STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
if __name__ == "__main__":
    # Before the imports below start a thread, which would receive them and end the script with its jobs in the queue.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)

import dask  # noqa: E402
from dask.utils import parse_bytes  # noqa: E402
from dask_jobqueue.slurm import SLURMJob  # noqa: E402
from distributed import Scheduler, Security, SpecCluster  # noqa: E402

_LOCAL_PAGES = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")
"""Pages about a worker are served in any case, and only the dashboard's are left out."""
_MOST_PORT = 65_535
_RESTART = "10 minutes"
"""A worker that is missing for so long has lost its job. Its nanny restarts it before: from a shared file system,
imports alone take longer than Dask's 15 s."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actor-jobs", type=_positive, default=2, help="jobs that act")
    parser.add_argument("--actor-places", type=_positive, default=8, help="act tasks of a job, one core each")
    parser.add_argument("--actor-memory", type=_memory, default="16GB")
    parser.add_argument("--learner-jobs", type=_positive, default=1, help="jobs that learn, one learner each")
    parser.add_argument("--learner-cores", type=_positive, default=4)
    parser.add_argument("--learner-memory", type=_memory, default="32GB")
    parser.add_argument("--learner-gres", help="generic resources that a learner requests besides cores, such as gpu:1")
    parser.add_argument("--queue", help="Slurm's partition")
    parser.add_argument("--account")
    parser.add_argument("--walltime", default="04:00:00")
    parser.add_argument("--interface", help="network interface that connects the nodes, such as ib0")
    parser.add_argument("--port", type=_port, default=8786)
    parser.add_argument("--scheduler-file", help="write the scheduler's address to this JSON file, for Dask's tools")
    parser.add_argument("--show", action="store_true", help="print the job scripts and exit")
    return parser.parse_args(arguments)


def job_options(settings: argparse.Namespace, security: Security) -> dict[str, dict[str, Any]]:
    """Return the arguments of `SLURMJob` by worker name."""
    common = {
        "queue": settings.queue,
        "account": settings.account,
        "walltime": settings.walltime,
        "interface": settings.interface,
        "protocol": "tls://",
        "security": security,
        "processes": 1,
        "job_script_prologue": [
            f"export DASK_CONFIG='{os.environ.get('DASK_CONFIG', '/etc/dask')}'",
            "export OMP_NUM_THREADS=1",
        ],
    }
    actor = common | {
        "job_name": "penstock-actor",
        "cores": settings.actor_places,
        "memory": settings.actor_memory,
        "worker_extra_args": [*_LOCAL_PAGES, "--resources", f"actor={settings.actor_places}"],
    }
    # Each learner has its own process: one thread runs tasks. Torch uses `distribution.torch_threads` of the cores, by
    # default 1, since sums depend on it; others read and decode shards.
    learner = common | {
        "job_name": "penstock-learner",
        "cores": 1,
        "job_cpu": settings.learner_cores,
        "memory": settings.learner_memory,
        "worker_extra_args": [*_LOCAL_PAGES, "--resources", "learner=1"],
        "job_extra_directives": [f"--gres={settings.learner_gres}"] if settings.learner_gres else [],
    }
    return {f"actor-{index}": actor for index in range(settings.actor_jobs)} | {
        f"learner-{index}": learner for index in range(settings.learner_jobs)
    }


def main() -> int:
    """Start the scheduler, submit the jobs and wait for a signal.

    Returns:
        0; 1 if the scheduler could not start or a job was refused; 2 if there are no certificates, or no Slurm.
    """
    settings = parse(sys.argv[1:])
    security = Security()
    if not (security.require_encryption and security.tls_ca_file):
        sys.stderr.write("no certificates for Dask: make some (deploy/tls/make_certificates.sh) and set DASK_CONFIG\n")
        return 2
    jobs = job_options(settings, security)
    if settings.show:
        for name, options in jobs.items():
            sys.stdout.write(SLURMJob("tls://SCHEDULER", name, **options).job_script() + "\n")
        return 0
    if missing := [name for name in ("sbatch", "scancel") if shutil.which(name) is None]:
        sys.stderr.write(f"no {' and no '.join(missing)} on PATH: run this where jobs of Slurm are submitted\n")
        return 2
    scheduler = {
        "protocol": "tls://",
        "security": security,
        "interface": settings.interface,
        "port": settings.port,
        "dashboard": False,
        "dashboard_address": "127.0.0.1:8787",
        "scheduler_file": settings.scheduler_file,
    }
    dask.config.set({"distributed.deploy.lost-worker-timeout": _RESTART})
    try:
        with SpecCluster(
            workers={name: {"cls": SLURMJob, "options": options} for name, options in jobs.items()},
            scheduler={"cls": Scheduler, "options": scheduler},
            security=security,
            name="penstock",
        ) as cluster:
            sys.stdout.write(f"{len(jobs)} jobs submitted; penstock train --scheduler {cluster.scheduler_address}\n")
            sys.stdout.flush()
            signal.sigwait(_STOPS)
    except (RuntimeError, OSError, ValueError, AssertionError) as error:
        sys.stderr.write(f"the cluster could not start: {_cause(error)}\n")
        return 1
    return 0


def _cause(error: BaseException) -> str:
    """Return what came first in a chain of errors that has a text, on one line."""
    said = ""
    following: BaseException | None = error
    while following is not None:
        said = " ".join(str(following).split()) or said
        following = following.__cause__ or following.__context__
    return said or type(error).__name__


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number of 1 or more")
    return int(text)


def _port(text: str) -> int:
    if _positive(text) > _MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text}, expected 1 to {_MOST_PORT}")
    return int(text)


def _memory(text: str) -> str:
    try:
        parse_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected an amount of memory, such as 16GB") from None
    return text


if __name__ == "__main__":
    sys.exit(main())
