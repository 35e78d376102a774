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
import signal
import sys
from typing import Any

from dask_jobqueue.slurm import SLURMJob
from distributed import Scheduler, Security, SpecCluster


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actor-jobs", type=_positive, default=2, help="jobs that act")
    parser.add_argument("--actor-places", type=_positive, default=8, help="act tasks of a job, one core each")
    parser.add_argument("--actor-memory", default="16GB")
    parser.add_argument("--learner-jobs", type=_positive, default=1, help="jobs that learn, one learner each")
    parser.add_argument("--learner-cores", type=_positive, default=4)
    parser.add_argument("--learner-memory", default="32GB")
    parser.add_argument("--learner-gres", help="generic resources that a learner requests besides cores, such as gpu:1")
    parser.add_argument("--queue", help="Slurm's partition")
    parser.add_argument("--account")
    parser.add_argument("--walltime", default="04:00:00")
    parser.add_argument("--interface", help="network interface that connects the nodes, such as ib0")
    parser.add_argument("--port", type=_positive, default=8786)
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
        "worker_extra_args": ["--no-dashboard", "--resources", f"actor={settings.actor_places}"],
    }
    # Each learner has its own process: one thread runs tasks, torch uses the cores.
    learner = common | {
        "job_name": "penstock-learner",
        "cores": 1,
        "job_cpu": settings.learner_cores,
        "memory": settings.learner_memory,
        "worker_extra_args": ["--no-dashboard", "--resources", "learner=1"],
        "job_extra_directives": [f"--gres={settings.learner_gres}"] if settings.learner_gres else [],
    }
    return {f"actor-{index}": actor for index in range(settings.actor_jobs)} | {
        f"learner-{index}": learner for index in range(settings.learner_jobs)
    }


def main() -> int:
    """Start the scheduler, submit the jobs and wait for a signal. Return 2 if there are no certificates."""
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
    scheduler = {
        "protocol": "tls://",
        "security": security,
        "interface": settings.interface,
        "port": settings.port,
        "dashboard": False,
        "scheduler_file": settings.scheduler_file,
    }
    with SpecCluster(
        workers={name: {"cls": SLURMJob, "options": options} for name, options in jobs.items()},
        scheduler={"cls": Scheduler, "options": scheduler},
        security=security,
        name="penstock",
    ) as cluster:
        sys.stdout.write(f"{len(jobs)} jobs submitted; penstock train --scheduler {cluster.scheduler_address}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    # Block signals before any thread starts, so that no thread receives them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main())
