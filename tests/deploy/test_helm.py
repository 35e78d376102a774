"""The Helm chart: rendered by Helm's own library, compared with the manifests, checked against the API's schemas."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from penstock import tasks

from .test_kubernetes import OBJECTS, VERSION, identity, wrapped

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")

ROOT = Path(tasks.__path__[0]).resolve().parent
CHART = ROOT / "deploy/helm/penstock"
EVERYTHING = {
    "image": {"name": "registry.example/penstock:2", "pullPolicy": "Always", "pullSecrets": ["registry"]},
    "secrets": {"tls": "other-tls", "prefectAuth": "other-auth", "storeAccess": "other-access"},
    "prefect": {"apiUrl": "https://prefect.example/api", "workPool": "lab"},
    "actors": {"replicas": 3, "slots": 2, "nodeSelector": {"pool": "cpu"}},
    "learners": {"replicas": 0},
    "gpuLearners": {"replicas": 1},
    "postgres": {"storage": "20Gi", "storageClass": "fast"},
    "networkPolicies": {"prometheusLabels": {"app.kubernetes.io/name": "prometheus"}, "metricsPorts": [9100, 9101]},
}


@pytest.fixture(scope="module")
def chart():
    with helm.Chart.load(str(CHART)) as loaded:
        yield loaded


def objects(chart, values):
    """Return what the chart makes of values, by kind and name."""
    rendered = chart.render(values, name="penstock", namespace="penstock")
    documents = [
        document
        for name, text in rendered.items()
        if not name.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
        if document is not None
    ]
    found = {identity(document): document for document in documents}
    assert len(found) == len(documents)
    return found


def test_the_default_values_render_the_manifests(chart):
    """Applying the manifests and installing the chart give the same objects."""
    assert objects(chart, {}) == {identity(item): item for item in OBJECTS}


def test_the_chart_has_no_faults_by_helms_own_check():
    """Helm's linter finds no error and no warning; an icon is a recommendation."""
    found = helm.lint(str(CHART))
    assert found["errors"] == []
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"]


def test_every_value_gives_valid_objects(chart):
    """With all values set, each object follows the schema, and the values are where they belong."""
    found = objects(chart, EVERYTHING)
    for item in found.values():
        if item["apiVersion"] != "kubernetes.dask.org/v1":
            kubernetes_validate.validate(item, VERSION, strict=True)
            continue
        for role in {"scheduler", "worker"} & set(item["spec"]):
            kubernetes_validate.validate(wrapped("Pod", item["spec"][role]["spec"]), VERSION, strict=True)
    actors = found["DaskCluster-penstock"]["spec"]["worker"]
    assert actors["replicas"] == 3
    pod = actors["spec"]
    assert pod["nodeSelector"] == {"pool": "cpu"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["volumes"][-1]["secret"]["secretName"] == "other-tls"
    (worker,) = pod["containers"]
    assert (worker["image"], worker["imagePullPolicy"]) == ("registry.example/penstock:2", "Always")
    assert {"--nthreads=2", "--resources=actor=2"} <= set(worker["args"])
    assert {"name": "PREFECT_API_URL", "value": "https://prefect.example/api"} in worker["env"]
    assert "lab" in found["Deployment-penstock-driver"]["spec"]["template"]["spec"]["containers"][0]["args"]
    (claim,) = found["StatefulSet-postgres"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "20Gi"}},
    }
    (rule,) = found["NetworkPolicy-penstock-metrics"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": 9100}, {"port": 9101}]


def test_parts_can_be_left_out(chart):
    """Without database and policies, neither is there, and the rest stays as it is."""
    found = objects(chart, {"postgres": {"enabled": False}, "networkPolicies": {"enabled": False}})
    left = {identity(item): item for item in OBJECTS if item["kind"] != "NetworkPolicy" and "postgres" not in str(item)}
    assert found == left


@pytest.mark.parametrize(
    "values",
    [
        {"actors": {"replica": 3}},
        {"actors": {"replicas": "three"}},
        {"actors": {"slots": 0}},
        {"image": {"name": ""}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"networkPolicies": {"metricsPorts": [70000]}},
        {"prefect": {"apiUrl": "prefect-server:4200"}},
        {"driver": {"resources": {"requests": {"memory": None}}}},
        {"learner": {}},
    ],
    ids=str,
)
def test_mistaken_values_are_refused(chart, values):
    """A slip in a values file is an error of `helm install`, and not a cluster without workers."""
    with pytest.raises(helm.HelmError):
        chart.render(values, name="penstock", namespace="penstock")
