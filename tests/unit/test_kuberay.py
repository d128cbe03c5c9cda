"""What conf/cluster says to KubeRay: its own schemas where they are given (CROSSMESH_TEST_DATA), and what they cannot say."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

KINDS = {"raycluster.yml": "rayclusters", "rayjob.yml": "rayjobs"}


@pytest.fixture(scope="module")
def job(checkout: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((checkout / "conf" / "cluster" / "rayjob.yml").read_text()))


def unknown(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Fields that the schema does not have, values of another type or outside its enumeration, and required fields that are missing."""
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        found = [f"{path}.{name} is missing" for name in schema.get("required", []) if name not in value]
        for name, one in value.items():
            found += unknown(one, known[name], f"{path}.{name}") if name in known else [f"{path}.{name} is not known"]
        return found
    if isinstance(value, list) and "items" in schema:
        return [told for index, one in enumerate(value) for told in unknown(one, schema["items"], f"{path}[{index}]")]
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "number": (int, float)}
    wanted = kinds.get(schema.get("type", ""), object)
    if not schema.get("x-kubernetes-int-or-string") and not isinstance(value, wanted):
        return [f"{path}={value!r} is no {schema['type']}"]
    return [f"{path}={value!r} is not allowed"] if value not in schema.get("enum", [value]) else []


@pytest.mark.skipif("CROSSMESH_TEST_DATA" not in os.environ, reason="needs CROSSMESH_TEST_DATA, a folder with kuberay in it")
@pytest.mark.parametrize("name", KINDS)
def test_kuberays_schema_knows_every_field(name: str, checkout: Path) -> None:
    schema = json.loads((Path(os.environ["CROSSMESH_TEST_DATA"]) / "kuberay" / f"{KINDS[name]}.v1.schema.json").read_text())
    given = yaml.safe_load((checkout / "conf" / "cluster" / name).read_text())
    assert unknown(given["spec"], schema["properties"]["spec"], "spec") == []
    assert unknown({**given["spec"], "workerGroupSpec": []}, schema["properties"]["spec"]) == [".workerGroupSpec is not known"]


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
