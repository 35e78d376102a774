"""Print the deployments of prefect.yaml for a cluster: with another store and a Dask scheduler.

As they are in prefect.yaml, they train on the machine of Prefect's worker, into its folder `runs`.

    PENSTOCK_STORE=s3://bucket/runs PENSTOCK_SCHEDULER=tls://scheduler:8786 \
        python deploy/cluster_deployments.py > deploy/prefect-cluster.yaml
    prefect --no-prompt deploy --all --prefect-file deploy/prefect-cluster.yaml

PENSTOCK_CACHE_FOLDER optionally names the folder of the node cache, and PENSTOCK_WORK_POOL another work pool.
"""

from __future__ import annotations

import os
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).with_name("prefect.yaml")


def for_cluster(
    described: dict[str, Any], store: str, cluster: dict[str, str], work_pool: str | None = None
) -> dict[str, Any]:
    """Return the same deployments, in another work pool if one is given; those that train use `store` and `cluster`."""
    described = deepcopy(described)
    described.pop("definitions", None)
    for deployment in described["deployments"]:
        if work_pool:
            deployment["work_pool"] = {**deployment.get("work_pool", {}), "name": work_pool}
        parameters = deployment["parameters"]
        if "config" in parameters:
            parameters["config"] |= {"store": store, "cluster": cluster}
        else:
            parameters["store"] = store
        if deployment["name"] == "resume":
            parameters["cluster"] = cluster
        for trigger in deployment.get("triggers", ()):
            # A trigger's parameters replace the deployment's, name by name. An event names its own store.
            if "{{" not in trigger["parameters"]["store"]:
                trigger["parameters"]["store"] = store
    return described


def main() -> int:
    """Print the deployments. Return 2 if a variable is missing."""
    missing = [name for name in ("PENSTOCK_STORE", "PENSTOCK_SCHEDULER") if not os.environ.get(name)]
    if missing:
        sys.stderr.write(f"{' and '.join(missing)} not set; for example s3://bucket/runs and tls://scheduler:8786\n")
        return 2
    cluster = {"scheduler": os.environ["PENSTOCK_SCHEDULER"]}
    if folder := os.environ.get("PENSTOCK_CACHE_FOLDER"):
        cluster["cache_folder"] = folder
    described = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    made = for_cluster(described, os.environ["PENSTOCK_STORE"], cluster, os.environ.get("PENSTOCK_WORK_POOL"))
    yaml.safe_dump(made, sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
