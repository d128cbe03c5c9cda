"""What the stand-in has: one project with a service account, a subnetwork, machines and operations; and what goes wrong with them."""

import base64
import ipaddress
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from google_cloud.discovery import Call
from google_cloud.filters import matches
from google_cloud.machines import (
    COMPUTE,
    PREEMPTED,
    RUNNING,
    STARTING,
    STOPPING,
    TPU,
    ApiError,
    Machine,
    Operation,
    check_labels,
    failed,
    gone,
)


class Hosts(Protocol):
    """What machines are made of."""

    def start(self, machine: Machine) -> None:
        """Bring the machine up, so that SSH reaches it."""

    def stop(self, machine: Machine) -> None:
        """End it with everything that runs on it; one that was never up is not an error."""


class NoHosts:
    """Machines that nobody reaches."""

    def start(self, machine: Machine) -> None:
        """Nothing."""

    def stop(self, machine: Machine) -> None:
        """Nothing."""


@dataclass
class Fault:
    """What goes wrong with the next `count` machines of a sort."""

    what: str
    """`stockout` or `quota`: the operation ends with that error and there is no machine. `half_created`: the machine never gets ready and
    the operation never ends. `never_up`: it says that it runs and nobody answers on it."""
    sort: str
    count: int = 1


class Cloud:
    """The state of the project; its methods are those of the APIs, by the ids of the discovery documents."""

    def __init__(self, project: str, region: str, zone: str, hosts: Hosts | None = None, delay_s: float = 0.0) -> None:
        self.project, self.region, self.zone = project, region, zone
        self.machines: dict[str, Machine] = {}
        self.history: list[Machine] = []
        """Every machine that there was, in order."""
        self._hosts, self._delay_s = hosts or NoHosts(), delay_s
        self._operations: dict[str, Operation] = {}
        self._faults: list[Fault] = []
        self._metadata: dict[str, Any] = {"fingerprint": "AAAA", "items": []}
        self._accounts: dict[str, dict[str, Any]] = {}
        self._policy: dict[str, Any] = {"version": 1, "etag": "AAAA", "bindings": []}
        self._addresses, self._numbers = itertools.count(16), itertools.count(1)
        self._lock = threading.RLock()

    # What a test asks for.

    def break_next(self, what: str, sort: str, count: int = 1) -> None:
        """Let something go wrong with the next `count` machines of `sort`; 0: no longer."""
        with self._lock:
            self._faults = [fault for fault in self._faults if (fault.what, fault.sort) != (what, sort)]
            self._faults.append(Fault(what, sort, count))

    def preempt(self, name: str) -> None:
        """Take a machine back, as Google does with Spot ones: at once, here without its half minute of warning."""
        with self._lock:
            machine = self.machines[name]
            machine.state = PREEMPTED[machine.kind]
            if machine.body.get("scheduling", {}).get("instanceTerminationAction") == "DELETE":
                del self.machines[name]
        self._hosts.stop(machine)

    # The APIs.

    def answer(self, call: Call) -> dict[str, Any]:
        """Do what a valid request asks for."""
        methods: Mapping[str, Callable[[Mapping[str, str], Any], dict[str, Any]]] = {
            "cloudresourcemanager.projects.get": self._project,
            "cloudresourcemanager.projects.getIamPolicy": lambda _, __: self._policy,
            "cloudresourcemanager.projects.setIamPolicy": self._set_policy,
            "iam.projects.serviceAccounts.get": self._account,
            "iam.projects.serviceAccounts.create": self._make_account,
            "compute.projects.get": self._compute_project,
            "compute.projects.setCommonInstanceMetadata": self._set_metadata,
            "compute.globalOperations.get": self._operation,
            "compute.subnetworks.list": self._subnetworks,
            "compute.instances.insert": self._insert,
            "compute.instances.list": self._list,
            "compute.instances.get": lambda asked, _: self._shown(self._found(asked["instance"], asked)),
            "compute.instances.setLabels": self._set_labels,
            "compute.instances.delete": lambda asked, _: self._delete(self._found(asked["instance"], asked)),
            "compute.zoneOperations.get": self._operation,
            "tpu.projects.locations.nodes.create": self._create,
            "tpu.projects.locations.nodes.list": self._list_tpus,
            "tpu.projects.locations.nodes.get": lambda asked, _: self._shown(self._found_tpu(asked["name"])),
            "tpu.projects.locations.nodes.patch": self._patch,
            "tpu.projects.locations.nodes.delete": lambda asked, _: self._delete(self._found_tpu(asked["name"])),
            "tpu.projects.locations.operations.get": lambda asked, _: self._shown_operation(asked["name"]),
        }
        if call.method not in methods:
            raise ApiError(501, "UNIMPLEMENTED", f"the stand-in does not have {call.method}")
        if call.parameters.get("project", self.project) != self.project:
            raise ApiError(403, "PERMISSION_DENIED", f"no access to project {call.parameters['project']!r}")
        with self._lock:
            return methods[call.method](call.parameters, call.body)

    def _project(self, asked: Mapping[str, str], _: Any) -> dict[str, Any]:
        if asked["projectId"] != self.project:
            raise ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")
        return {"projectId": self.project, "name": self.project, "projectNumber": "1", "lifecycleState": "ACTIVE"}

    def _set_policy(self, _: Mapping[str, str], body: Any) -> dict[str, Any]:
        members = {member for binding in body["policy"]["bindings"] for member in binding["members"]}
        for member in members:
            if member.removeprefix("serviceAccount:") not in self._accounts:
                raise ApiError(400, "INVALID_ARGUMENT", f"{member} does not exist")
        self._policy = body["policy"]
        return self._policy

    def _account(self, asked: Mapping[str, str], _: Any) -> dict[str, Any]:
        email = asked["name"].rpartition("/")[2]
        if email not in self._accounts:
            raise ApiError(404, "NOT_FOUND", f"Unknown service account {email}")
        return self._accounts[email]

    def _make_account(self, _: Mapping[str, str], body: Any) -> dict[str, Any]:
        email = f"{body['accountId']}@{self.project}.iam.gserviceaccount.com"
        self._accounts[email] = {**body["serviceAccount"], "email": email, "projectId": self.project}
        return self._accounts[email]

    def _compute_project(self, _: Mapping[str, str], __: Any) -> dict[str, Any]:
        return {"kind": "compute#project", "name": self.project, "commonInstanceMetadata": self._metadata}

    def _set_metadata(self, _: Mapping[str, str], body: Any) -> dict[str, Any]:
        if body.get("fingerprint") != self._metadata["fingerprint"]:
            raise ApiError(412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
        number = next(self._numbers)
        self._metadata = {**body, "fingerprint": base64.b64encode(number.to_bytes(6, "big")).decode()}
        return self._ended(COMPUTE, "project", "setMetadata").shown()

    @property
    def ssh_keys(self) -> list[str]:
        """Public keys of the project's metadata, which let users in on every machine."""
        values = [item["value"] for item in self._metadata["items"] if item["key"] == "ssh-keys"]
        return [line.partition(":")[2] for value in values for line in value.split("\n")]

    def _subnetworks(self, asked: Mapping[str, str], _: Any) -> dict[str, Any]:
        if asked["region"] != self.region:
            raise ApiError(400, "invalid", f"Invalid value for field 'region': '{asked['region']}'. Unknown region.")
        link = f"https://www.googleapis.com/compute/v1/projects/{self.project}/regions/{self.region}/subnetworks/default"
        return {"kind": "compute#subnetworkList", "items": [{"name": "default", "selfLink": link, "ipCidrRange": "10.128.0.0/20"}]}

    def _insert(self, asked: Mapping[str, str], body: Any) -> dict[str, Any]:
        self._check_zone(asked["zone"])
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", body["name"]):
            raise ApiError(400, "invalid", f"Invalid value for field 'resource.name': '{body['name']}'.")
        links = [(body["machineType"], f"zones/{self.zone}/machineTypes/")]
        links += [(disk["initializeParams"]["diskType"], f"zones/{self.zone}/diskTypes/") for disk in body["disks"]]
        for link, wanted in links:
            if wanted not in link:
                raise ApiError(400, "invalid", f"{link!r} is not in {wanted}")
        if not [disk for disk in body["disks"] if disk.get("boot")] or not body.get("networkInterfaces"):
            raise ApiError(400, "required", "At least one boot disk and one network interface have to be specified.")
        return self._begin(body["name"], COMPUTE, body)

    def _create(self, asked: Mapping[str, str], body: Any) -> dict[str, Any]:
        self._check_zone(asked["parent"].rpartition("/")[2])
        if not body.get("runtimeVersion"):
            raise ApiError(400, "INVALID_ARGUMENT", "runtimeVersion is required")
        return self._begin(asked["nodeId"], TPU, body)

    def _check_zone(self, zone: str) -> None:
        if zone != self.zone:
            raise ApiError(404, "notFound", f"The resource 'projects/{self.project}/zones/{zone}' was not found")

    def _begin(self, name: str, kind: str, body: Any) -> dict[str, Any]:
        check_labels(body.get("labels", {}))
        if name in self.machines:
            raise ApiError(409, "alreadyExists", f"The resource {name!r} already exists")
        number = next(self._addresses)
        addresses = ipaddress.ip_address("10.128.0.0") + number, ipaddress.ip_address("203.0.113.0") + number
        machine = Machine(name, kind, body, str(addresses[0]), str(addresses[1]), dict(body.get("labels", {})), STARTING[kind])
        self.machines[name] = machine
        self.history.append(machine)
        operation = self._begun(kind, name, "insert")
        self._later(lambda: self._finish_start(machine, operation))
        return operation.shown()

    def _finish_start(self, machine: Machine, operation: Operation) -> None:
        fault = self._fault(machine.sort)
        if fault == "half_created":
            return
        if fault in ("stockout", "quota"):
            with self._lock:
                self.machines.pop(machine.name, None)
                operation.error, operation.done = failed(machine.kind, fault, machine.sort, self.zone), True
            return
        if fault != "never_up":
            self._hosts.start(machine)
        with self._lock:
            machine.state, operation.done = RUNNING[machine.kind], True

    def _fault(self, sort: str) -> str:
        with self._lock:
            for fault in self._faults:
                if fault.sort == sort and fault.count:
                    fault.count -= 1
                    return fault.what
        return ""

    def _delete(self, machine: Machine) -> dict[str, Any]:
        machine.state = STOPPING[machine.kind]
        operation = self._begun(machine.kind, machine.name, "delete")

        def finish() -> None:
            self._hosts.stop(machine)
            with self._lock:
                self.machines.pop(machine.name, None)
                operation.done = True
                for other in self._operations.values():  # Of one that was never ready.
                    if other.target == machine.name and not other.done:
                        other.done, other.error = True, gone(machine.kind, machine.name)

        self._later(finish)
        return operation.shown()

    def _later(self, finish: Callable[[], None]) -> None:
        if self._delay_s == 0:
            finish()
            return

        def wait() -> None:
            time.sleep(self._delay_s)
            finish()

        threading.Thread(target=wait, daemon=True).start()

    def _set_labels(self, asked: Mapping[str, str], body: Any) -> dict[str, Any]:
        machine = self._found(asked["instance"], asked)
        check_labels(body["labels"])
        if body.get("labelFingerprint") != machine.fingerprint:
            raise ApiError(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
        machine.labels = dict(body["labels"])
        return self._ended(COMPUTE, machine.name, "setLabels").shown()

    def _patch(self, asked: Mapping[str, str], body: Any) -> dict[str, Any]:
        machine = self._found_tpu(asked["name"])
        if asked.get("updateMask") != "labels" or set(body) != {"labels"}:
            raise ApiError(501, "UNIMPLEMENTED", "the stand-in patches labels only")
        if machine.state not in (RUNNING[TPU], STARTING[TPU]):
            raise ApiError(400, "FAILED_PRECONDITION", f"node {machine.name} is {machine.state}")
        check_labels(body["labels"])
        machine.labels = dict(body["labels"])
        return self._ended(TPU, machine.name, "update").shown()

    def _list(self, asked: Mapping[str, str], _: Any) -> dict[str, Any]:
        self._check_zone(asked["zone"])
        shown = [self._shown(machine) for machine in self.machines.values() if machine.kind == COMPUTE]
        try:
            items = [one for one in shown if matches(one, asked.get("filter", ""))] if asked.get("filter") else shown
        except ValueError as error:
            raise ApiError(400, "invalid", str(error)) from error
        return {"kind": "compute#instanceList", "items": items} if items else {"kind": "compute#instanceList"}

    def _list_tpus(self, _: Mapping[str, str], __: Any) -> dict[str, Any]:
        nodes = [self._shown(machine) for machine in self.machines.values() if machine.kind == TPU]
        return {"nodes": nodes} if nodes else {}

    def _found(self, name: str, asked: Mapping[str, str]) -> Machine:
        self._check_zone(asked["zone"])
        if name not in self.machines or self.machines[name].kind != COMPUTE:
            raise ApiError(404, "notFound", f"The resource 'projects/{self.project}/zones/{self.zone}/instances/{name}' was not found")
        return self.machines[name]

    def _found_tpu(self, path: str) -> Machine:
        name = path.rpartition("/")[2]
        if name not in self.machines or self.machines[name].kind != TPU:
            raise ApiError(404, "NOT_FOUND", f"Resource '{path}' was not found")
        return self.machines[name]

    def _shown(self, machine: Machine) -> dict[str, Any]:
        return machine.shown(self.project, self.zone)

    def _begun(self, kind: str, target: str, what: str) -> Operation:
        name = f"operation-{next(self._numbers)}"
        full = f"projects/{self.project}/locations/{self.zone}/operations/{name}" if kind == TPU else name
        self._operations[full] = Operation(full, kind, target, what)
        return self._operations[full]

    def _ended(self, kind: str, target: str, what: str) -> Operation:
        operation = self._begun(kind, target, what)
        operation.done = True
        return operation

    def _operation(self, asked: Mapping[str, str], _: Any) -> dict[str, Any]:
        return self._shown_operation(asked["operation"])

    def _shown_operation(self, name: str) -> dict[str, Any]:
        if name not in self._operations:
            raise ApiError(404, "notFound", f"The resource '{name}' was not found")
        return self._operations[name].shown()
