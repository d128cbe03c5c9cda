"""Machines of the stand-in as Compute and TPU show them, and the long-running operations on them."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPUTE, TPU = "compute", "tpu"
RUNNING = {COMPUTE: "RUNNING", TPU: "READY"}
STARTING = {COMPUTE: "STAGING", TPU: "CREATING"}
STOPPING = {COMPUTE: "STOPPING", TPU: "DELETING"}
PREEMPTED = {COMPUTE: "TERMINATED", TPU: "PREEMPTED"}
_LABEL_KEY, _LABEL_VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


@dataclass
class Machine:
    """A Compute instance or a TPU VM."""

    name: str
    kind: str
    body: Mapping[str, Any]
    """Of the request that made it."""
    internal_ip: str
    external_ip: str
    labels: dict[str, str]
    state: str

    @property
    def sort(self) -> str:
        """What it is a machine of: `a3-highgpu-2g`, `v5p-8`."""
        return str(self.body["machineType"] if self.kind == COMPUTE else self.body["acceleratorType"]).rpartition("/")[2]

    @property
    def spot(self) -> bool:
        """Whether it can be taken back."""
        return self.body.get("scheduling", {}).get("provisioningModel") == "SPOT" or self.body.get("schedulingConfig", {}).get(
            "spot", False
        )

    @property
    def fingerprint(self) -> str:
        """Of the labels: a change to them has to name it."""
        digest = hashlib.sha256(json.dumps(self.labels, sort_keys=True).encode()).digest()
        return base64.urlsafe_b64encode(digest[:8]).decode()

    def shown(self, project: str, zone: str) -> dict[str, Any]:
        """The resource as the APIs answer it."""
        if self.kind == TPU:
            endpoint = {"ipAddress": self.internal_ip, "port": 8470, "accessConfig": {"externalIp": self.external_ip}}
            name = f"projects/{project}/locations/{zone}/nodes/{self.name}"
            return {**self.body, "name": name, "state": self.state, "labels": dict(self.labels), "networkEndpoints": [endpoint]}
        interface = {**self.body["networkInterfaces"][0], "name": "nic0", "networkIP": self.internal_ip}
        interface["accessConfigs"] = [{**one, "natIP": self.external_ip} for one in interface.get("accessConfigs", [])]
        shown = {**self.body, "kind": "compute#instance", "status": self.state, "networkInterfaces": [interface]}
        return shown | {"labels": dict(self.labels), "labelFingerprint": self.fingerprint, "zone": zone}


@dataclass
class Operation:
    """A long-running operation."""

    name: str
    kind: str
    target: str
    what: str
    done: bool = False
    error: Mapping[str, Any] | None = None

    def shown(self) -> dict[str, Any]:
        """The operation as its API answers it."""
        if self.kind == TPU:
            answer = {"@type": "type.googleapis.com/google.protobuf.Empty"}
            ended = {"error": self.error} if self.error else {"response": answer}
            return {"name": self.name, "done": self.done, **(ended if self.done else {})}
        shown = {"kind": "compute#operation", "name": self.name, "operationType": self.what, "targetLink": self.target}
        shown["status"] = "DONE" if self.done else "RUNNING"
        return shown | ({"error": self.error, "httpErrorStatusCode": 503} if self.done and self.error else {})


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise for labels that Google does not take; its documents say nothing of their form."""
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise ApiError(400, "INVALID_ARGUMENT", f"Invalid value for field 'labels': {key!r}: {value!r}.")


def failed(kind: str, fault: str, sort: str, zone: str) -> dict[str, Any]:
    """The `error` of an operation that ran into `fault`: `stockout` or `quota`."""
    if kind == TPU:
        text = {
            "stockout": f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes are offered',
            "quota": f"Quota limit 'TPUPerProjectPerZoneForTPUAPI' has been exceeded for {sort}. Limit: 0 in zone {zone}.",
        }[fault]
        return {"code": 8, "message": text}
    code, text = {
        "stockout": (
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            f"The zone 'projects/p/zones/{zone}' does not have enough resources available to fulfill the request. Try a different zone, "
            "or try again later.",
        ),
        "quota": ("QUOTA_EXCEEDED", f"Quota 'GPUS_ALL_REGIONS' exceeded for {sort}. Limit: 0.0 globally."),
    }[fault]
    return {"errors": [{"code": code, "message": text}]}


def gone(kind: str, name: str) -> dict[str, Any]:
    """The `error` of an operation on a machine that was deleted meanwhile."""
    text = f"The resource {name!r} was deleted"
    return {"code": 5, "message": text} if kind == TPU else {"errors": [{"code": "RESOURCE_NOT_FOUND", "message": text}]}
