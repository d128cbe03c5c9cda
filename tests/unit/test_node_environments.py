"""Every stage of every job finds its environment on the node that it runs on, in both cluster files."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from crossmesh import environments
from crossmesh.command.verbs import verbs
from crossmesh.environments import VARIABLES, environment
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Cpu, Device, Gpu

ON_GCP = ("tpu_v5p_8", "tpu_v6e_8", "gpu_2xh100")
ON_KUBERNETES = (*ON_GCP, "tpu_v5p_16", "tpu_v6e_16")
HEAD = "head"

TRAINS, SERVES = ("train/jax", "train/torch"), ("serve/vllm-gpu", "serve/vllm-tpu")
GATE = ("plan/trace-gpu", "plan/aot-tpu")
STAGES: Mapping[str, tuple[str, ...]] = {
    "benchmark": (*TRAINS, *SERVES, "bench/vllm"),
    "compare": (),
    "doctor": (),
    "evaluate": (*TRAINS, *SERVES, "eval/lm-eval"),
    "export": TRAINS,
    "finetune": (*TRAINS, *GATE),
    "lengths": (),
    "pipeline": (*TRAINS, *SERVES, *GATE, "eval/lm-eval"),
    "plan": GATE,
    "serve": (*TRAINS, *SERVES),
    "status": (),
    "tune": (*TRAINS, *SERVES, *GATE, "bench/vllm", "eval/lm-eval"),
    "ui": (),
    "verify": (),
}
"""Worker kinds that each job starts on a cluster, beside its driver. `verify` compares both sides on the machine that it is started on."""
BESIDE_THE_DRIVER = (*GATE, "bench/vllm", "eval/lm-eval")
"""Processes that the driver itself starts: on the head, for a submitted job."""
SAID = {"plan/aot-tpu": "plans go by kept answers and the model, and say that `make compiler` brings the compiler"}
"""What the head does without, and what happens then."""
LOCAL = {"serve/vllm-cpu": "hardware=cpu is one machine: no cluster file has a node of its lock"}


@dataclass(frozen=True)
class Node:
    """What a node has."""

    device: Device | None
    """None: the head."""
    rays: frozenset[str]
    """Locks of the environment that runs Ray."""
    beside: Mapping[str, str]
    """Locks of the others, by the name of their folder."""


def installed(checkout: Path, command: str, home: Path) -> Node:
    """What `install-node.sh` installs with the arguments in `command`: the script runs with an `uv` that writes down what it is told."""
    home.mkdir(parents=True)
    uv = home / "uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(
        '#!/bin/bash\necho "$@" >> ~/told\n[ "$1" != venv ] || { mkdir -p "${@: -1}/bin"; touch "${@: -1}/bin/python"; }\n'
        '[ "$1" != venv ] || chmod +x "${@: -1}/bin/python"\n'
    )
    uv.chmod(0o755)
    arguments = re.search(r"install-node\.sh([^&|;]*)", command)
    assert arguments is not None
    script = checkout / "requirements" / "install-node.sh"
    variables = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-c", f"bash {script} {arguments[1]}"], env=variables, check=True)
    told = re.findall(r"--python (\S+)/bin/python .*-r \S+/([\w-]+)\.txt", (home / "told").read_text())
    folders = {link.name: link.resolve().name for link in home.glob("crossmesh-*") if link.is_symlink()}
    found: dict[str, set[str]] = {}
    for folder, lock in told:
        found.setdefault(Path(folder).name, set()).add(lock)
    ray = next(name for name, locks in found.items() if "head" in locks)
    beside = {name: next(iter(locks)) for name, locks in found.items() if name != ray}
    own = {link: "+".join(sorted(found[target] - {"head"})) or "head" for link, target in folders.items()}
    return Node(None, frozenset(found[ray]), {**beside, **own})


def of_gcp(checkout: Path, folder: Path) -> Iterator[tuple[Node, Mapping[str, str]]]:
    """Nodes of cluster.yaml, and the interpreters that the head names."""
    launcher = yaml.safe_load((checkout / "cluster.yaml").read_text())
    named = dict(re.findall(r"(CROSSMESH_PYTHON_\w+)=\$HOME/([\w-]+)/bin/python", launcher["head_start_ray_commands"][-1]))
    commands = {HEAD: launcher["setup_commands"]}
    commands |= {name: launcher["available_node_types"][name]["worker_setup_commands"] for name in ON_GCP}
    yield from _nodes(checkout, folder, {name: " ; ".join(told) for name, told in commands.items()}, named)


def of_kubernetes(checkout: Path, folder: Path) -> Iterator[tuple[Node, Mapping[str, str]]]:
    """Nodes of raycluster.yml, by their images, and the interpreters that the head's variables name."""
    spec = yaml.safe_load((checkout / "conf" / "cluster" / "raycluster.yml").read_text())["spec"]
    groups = {HEAD: spec["headGroupSpec"]} | {group["groupName"].replace("-", "_"): group for group in spec["workerGroupSpecs"]}
    container = {name: group["template"]["spec"]["containers"][0] for name, group in groups.items()}
    variables = {one["name"]: one.get("value", "") for one in container[HEAD]["env"]}
    named = {name: value.split("/")[3] for name, value in variables.items() if name.startswith("CROSSMESH_PYTHON_")}
    dockerfile = (checkout / "conf" / "cluster" / "Dockerfile").read_text()
    images = {text.split()[0]: text for text in dockerfile.split("FROM base AS ")[1:]}
    assert set(groups) == {HEAD, *ON_KUBERNETES}
    yield from _nodes(checkout, folder, {name: images[one["image"].partition(":")[2]] for name, one in container.items()}, named)


def _nodes(checkout: Path, folder: Path, commands: Mapping[str, str], named: Mapping[str, str]) -> Iterator[tuple[Node, Mapping[str, str]]]:
    for name, command in commands.items():
        found = installed(checkout, command.replace("\n", " ; "), folder / name)
        yield Node(None if name == HEAD else find_slice(name).device, found.rays, found.beside), named


def stages(job: str, node: Node) -> Iterator[tuple[str, str]]:
    """The kinds of worker that `job` starts on `node`, with the lock that each needs."""
    for kind in ("head", *STAGES[job]):
        if node.device is None and (kind == "head" or kind in BESIDE_THE_DRIVER):
            yield kind, environment(kind, Cpu()).lock
        elif node.device is not None and kind not in BESIDE_THE_DRIVER and type(node.device) in environments._REGISTRY[kind].locks:
            yield kind, environment(kind, node.device).lock


def missing(node: Node, named: Mapping[str, str], kind: str, lock: str) -> str:
    """Why a worker of `kind` does not find its environment on `node`; empty when it does."""
    variable = "CROSSMESH_PYTHON_" + kind.upper().replace("/", "_").replace("-", "_")
    wanted = lock.removesuffix(".txt")
    if variable not in named:
        return "" if wanted in node.rays else f"{kind}: Ray's environment has {sorted(node.rays)}, not {wanted}"
    found = node.beside.get(named[variable])
    return "" if found == wanted else f"{kind}: {variable} names {named[variable]}, which has {found}, not {wanted}"


@pytest.mark.parametrize("nodes", [of_gcp, of_kubernetes])
def test_every_stage_of_every_job_finds_its_environment(nodes: Any, checkout: Path, tmp_path: Path) -> None:
    lacking, walked = set(), set()
    for node, named in nodes(checkout, tmp_path):
        for job in STAGES:
            for kind, lock in stages(job, node):
                walked.add(kind)
                if said := missing(node, named, kind, lock):
                    lacking.add((kind, f"{job} on {node.device.chip if node.device else 'the head'}: {said}"))
    assert {said for kind, said in lacking if kind not in SAID} == set()
    assert walked | LOCAL.keys() == environments._REGISTRY.keys()


def test_every_job_is_walked(checkout: Path) -> None:
    assert set(STAGES) == set(verbs()) == {file.stem for file in (checkout / "jobs").glob("*.py")}


@pytest.mark.parametrize("nodes", [of_gcp, of_kubernetes])
def test_the_head_has_the_interpreter_of_every_kind_that_trains(nodes: Any, checkout: Path, tmp_path: Path) -> None:
    """Ray Train's PlacementGroupCleaner has the runtime environment of the trainer and runs on the head; a run waits for it without end."""
    (head, named), *_ = [(node, named) for node, named in nodes(checkout, tmp_path) if node.device is None]
    for kind in TRAINS:
        variable = "CROSSMESH_PYTHON_" + kind.upper().replace("/", "_")
        assert variable not in named or named[variable] in head.beside, variable
    assert head.beside["crossmesh-train-jax"] == "head"


@pytest.mark.parametrize("nodes", [of_gcp, of_kubernetes])
def test_nodes_install_nothing_that_no_stage_needs(nodes: Any, checkout: Path, tmp_path: Path) -> None:
    for node, _ in nodes(checkout, tmp_path):
        wanted = {lock.removesuffix(".txt") for job in STAGES for _, lock in stages(job, node)}
        assert node.rays | set(node.beside.values()) <= wanted | {"head"}


@pytest.mark.parametrize("nodes", [of_gcp, of_kubernetes])
def test_every_interpreter_that_is_named_is_documented(nodes: Any, checkout: Path, tmp_path: Path) -> None:
    for _, named in nodes(checkout, tmp_path):
        assert named.keys() <= {variable.name for variable in VARIABLES}


def test_the_head_s_environments_have_the_python_that_their_locks_were_compiled_for(checkout: Path, tmp_path: Path) -> None:
    installed(checkout, "install-node.sh --beside train-jax=head bench-vllm=cpu eval-lm-eval=lm-eval", tmp_path / "home")
    told = (tmp_path / "home" / "told").read_text()
    versions = {folder: version for version, folder in re.findall(r"^venv .*--python (\S+) \S+/([\w-]+)$", told, re.MULTILINE)}
    assert versions == {"crossmesh-venv": "3.12", "crossmesh-bench-vllm": "3.11", "crossmesh-eval-lm-eval": "3.11"}
    makefile = (checkout / "Makefile").read_text().replace("\\\n", " ")
    for lock in ("cpu", "lm-eval"):
        assert re.search(rf"--python-version 3\.11 .*-o requirements/{lock}\.txt", makefile)
    # The CPU lock leaves torch to who installs it.
    torch = re.search(r"^torch==\S+", (checkout / "requirements" / "overrides-cpu.txt").read_text(), re.MULTILINE)
    assert torch is not None
    assert f"--torch-backend cpu {torch[0]}" in told


def test_rays_command_is_where_login_shells_look(checkout: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    installed(checkout, "install-node.sh train-jax=tpu-train", home)
    assert (home / ".local" / "bin" / "ray").readlink() == home / "crossmesh-venv" / "bin" / "ray"


def test_a_gpu_node_runs_ray_where_torch_is(checkout: Path, tmp_path: Path) -> None:
    launcher = yaml.safe_load((checkout / "cluster.yaml").read_text())
    node = installed(checkout, launcher["available_node_types"]["gpu_2xh100"]["worker_setup_commands"][-1], tmp_path / "home")
    assert node.rays == {"head", "gpu"}
    assert environment("train/torch", Gpu("h100", 2, "H100")).lock == "gpu.txt"
