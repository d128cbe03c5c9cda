"""What conf/cluster says to KubeRay: its own schemas where they are given (CROSSMESH_TEST_DATA), and what they cannot say."""

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

KINDS = {"raycluster.yml": "rayclusters", "rayjob.yml": "rayjobs"}


@pytest.fixture(scope="module")
def job(checkout: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((checkout / "conf" / "cluster" / "rayjob.yml").read_text()))


def strict(schema: Any) -> Any:
    """The schema, which takes no field that it does not name."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return closed | {name: strict(one) for name, one in schema.items()}


@pytest.mark.skipif("CROSSMESH_TEST_DATA" not in os.environ, reason="needs CROSSMESH_TEST_DATA, a folder with kuberay in it")
@pytest.mark.parametrize("name", KINDS)
def test_kuberays_schema_knows_every_field(name: str, checkout: Path) -> None:
    schema = json.loads((Path(os.environ["CROSSMESH_TEST_DATA"]) / "kuberay" / f"{KINDS[name]}.v1.schema.json").read_text())
    given = yaml.safe_load((checkout / "conf" / "cluster" / name).read_text())
    validator = jsonschema.Draft202012Validator(strict(schema["properties"]["spec"]))
    assert [error.message for error in validator.iter_errors(given["spec"])] == []
    (wrong,) = validator.iter_errors({**given["spec"], "workerGroupSpec": []})
    assert "workerGroupSpec" in wrong.message


def test_the_job_runs_on_the_cluster_of_the_other_file(job: dict[str, Any], kubernetes: dict[str, Any]) -> None:
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": kubernetes["metadata"]["name"]}
    assert "rayClusterSpec" not in job["spec"]  # The cluster is described once.
    assert not {"backoffLimit", "shutdownAfterJobFinishes"} & set(job["spec"])  # The operator refuses them beside a selector.
    assert job["spec"]["submissionMode"] == "K8sJobMode"  # SidecarMode too.


def test_the_job_runs_what_the_images_have(job: dict[str, Any], checkout: Path) -> None:
    dockerfile = (checkout / "conf" / "cluster" / "Dockerfile").read_text()
    _, script, *keys = job["spec"]["entrypoint"].split()
    assert (checkout / script.removeprefix("/home/ray/crossmesh/")).is_file()
    assert "hardware=gpu_2xh100" in keys
    targets = re.findall(r"^FROM base AS \w+$", dockerfile, re.MULTILINE)
    assert dockerfile.count("COPY --from=code --chown=ray:users / /home/ray/crossmesh/") == len(targets) == 3


def test_operator_submitter_and_pods_have_one_token(job: dict[str, Any], kubernetes: dict[str, Any]) -> None:
    """The operator reads the key `auth_token` of the secret that authOptions names."""
    (submitter,) = job["spec"]["submitterPodTemplate"]["spec"]["containers"]
    groups = [kubernetes["spec"]["headGroupSpec"], *kubernetes["spec"]["workerGroupSpecs"]]
    containers = [submitter, kubernetes["spec"]["autoscalerOptions"], *[group["template"]["spec"]["containers"][0] for group in groups]]
    secret = {"name": kubernetes["spec"]["authOptions"]["secretName"], "key": "auth_token"}
    for container in containers:
        named = {one["name"]: one for one in container["env"]}
        assert named["RAY_AUTH_MODE"]["value"] == "token"
        assert named["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == secret
