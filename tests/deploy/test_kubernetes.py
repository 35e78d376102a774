"""Manifests for Kubernetes: checked against the API's schemas, never applied.

The operator's own resources have no schema in any package that pip has, but what they hold are a Pod's and a Service's
specification, which do. The values for Prefect's chart are checked for their references alone: its schema is in no
package either.
"""

import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from penstock import tasks

FOLDER = Path(tasks.__path__[0]).resolve().parent / "deploy/kubernetes"
VERSION = "1.34"
OBJECTS = [
    document
    for path in sorted(FOLDER.glob("*.yaml"))
    if not path.name.endswith(".values.yaml")
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
VALUES = yaml.safe_load((FOLDER / "prefect-server.values.yaml").read_text(encoding="utf-8"))
# The operator creates these, with the commands of deploy/README.md.
SECRETS = {
    "dask-tls": None,
    "penstock-store": {"url"},
    "penstock-store-access": None,
    "prefect-auth": {"auth-string"},
    "prefect-database": {"connection-string", "password"},
}


def identity(item):
    return f"{item['kind']}-{item['metadata']['name']}"


def pods():
    """Every specification of a Pod, by what it is a part of."""
    for item in OBJECTS:
        spec = item["spec"]
        if "template" in spec:
            yield identity(item), spec["template"]["spec"]
        for role in ("scheduler", "worker"):
            if role in spec:
                yield f"{identity(item)}-{role}", spec[role]["spec"]


def wrapped(kind, spec):
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "checked"}, "spec": spec}


@pytest.mark.parametrize("item", OBJECTS, ids=identity)
def test_manifests_follow_their_schema(item):
    """No key that the API does not know, no value of another type; of the operator's, what its schema is made of."""
    if item["apiVersion"] != "kubernetes.dask.org/v1":
        kubernetes_validate.validate(item, VERSION, strict=True)
        return
    spec = item["spec"]
    kubernetes_validate.validate(wrapped("Pod", spec["worker"]["spec"]), VERSION, strict=True)
    assert set(spec["worker"]) == {"replicas", "spec"}
    if item["kind"] == "DaskCluster":
        assert set(spec) == {"scheduler", "worker"}
        assert set(spec["scheduler"]) == {"spec", "service"}
        kubernetes_validate.validate(wrapped("Pod", spec["scheduler"]["spec"]), VERSION, strict=True)
        kubernetes_validate.validate(wrapped("Service", spec["scheduler"]["service"]), VERSION, strict=True)
    else:
        assert (item["kind"], set(spec)) == ("DaskWorkerGroup", {"cluster", "worker"})


def test_a_key_that_the_api_does_not_know_is_refused():
    """The schemas are strict: a slip in a manifest is found."""
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(
            wrapped("Pod", {"containers": [{"name": "a", "image": "b", "readinesProbe": {}}]}), VERSION, strict=True
        )


@pytest.mark.parametrize(("name", "pod"), list(pods()), ids=[name for name, _ in pods()])
def test_pods_have_no_rights_that_they_do_not_need(name, pod):
    """None runs as root, talks to Kubernetes, writes into its image or gains rights; each says what it needs."""
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= {
            volume["name"] for volume in pod.get("volumes", ())
        } | ({"data"} if name == "StatefulSet-postgres" else set())


def test_secrets_are_references():
    """No password stands in a file, and every Secret and key that is named is one that deploy/README.md makes."""
    assert "Secret" not in {item["kind"] for item in OBJECTS}
    for _, pod in pods():
        mounted = {volume["secret"]["secretName"] for volume in pod.get("volumes", ()) if "secret" in volume}
        assert mounted <= set(SECRETS)
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert {source["secretRef"]["name"] for source in container.get("envFrom", ())} <= set(SECRETS)
            for variable in container.get("env", ()):
                if "valueFrom" in variable:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference["key"] in SECRETS[reference["name"]]
                else:
                    assert not any(word in variable["name"] for word in ("PASSWORD", "SECRET", "AUTH", "KEY"))
    assert VALUES["server"]["basicAuth"] == {"enabled": True, "existingSecret": "prefect-auth"}
    assert VALUES["secret"] == {"create": False, "name": "prefect-database"}
    read = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    for name, keys in SECRETS.items():
        assert f"generic {name} " in read
        assert all(f"{key}=" in read for key in keys or ())


def test_policies_select_existing_pods():
    """A misspelt label would block all traffic, or leave a pod open."""
    labels = [item["spec"]["template"]["metadata"]["labels"] for item in OBJECTS if "template" in item["spec"]]
    labels += [{"dask.org/cluster-name": "penstock", "dask.org/component": role} for role in ("scheduler", "worker")]
    # Those of the charts.
    labels += [{"app.kubernetes.io/name": name} for name in (VALUES["fullnameOverride"], "dask-kubernetes-operator")]
    wanted = []
    for item in OBJECTS:
        if item["kind"] == "NetworkPolicy":
            wanted.append(item["spec"]["podSelector"])
            wanted += [peer["podSelector"] for rule in item["spec"].get("ingress", ()) for peer in rule["from"]]
    assert len(wanted) > 10
    for selector in wanted:
        chosen = selector.get("matchLabels", {}).items()
        assert any(chosen <= found.items() for found in labels), json.dumps(selector)


def test_dask_workers_offer_what_roles_ask_for():
    """Workers have slots for acting, learning, and learning on a requested GPU, and as many threads as slots."""
    offers = {}
    for name, pod in pods():
        arguments = pod["containers"][0].get("args", ())
        if "worker" in arguments and "dask" in arguments:
            options = dict(argument[2:].split("=", 1) for argument in arguments if "=" in argument)
            resource, count = options["resources"].split("=")
            assert count == options["nthreads"]
            assert "tls://penstock-scheduler:8786" in arguments
            offers[name] = (resource, pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu"))
    assert offers == {
        "DaskCluster-penstock-worker": ("actor", None),
        "DaskWorkerGroup-penstock-learners-worker": ("learner", None),
        "DaskWorkerGroup-penstock-learners-gpu-worker": ("learner", "1"),
    }
