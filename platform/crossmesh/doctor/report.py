"""What was found on this machine and on nodes of a cluster, as tables for a person and as JSON. No secret is in either."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from crossmesh.doctor.finding import FAULT, NOTE, OK, Finding
from crossmesh.track.masking import mask_secrets

_COLORS = {OK: "green", NOTE: "yellow", FAULT: "red"}


@dataclass(frozen=True)
class NodeReport:
    """What was found on a node of a cluster."""

    id: str
    address: str
    title: str
    alike: int
    """Nodes of the same kind that it stands for."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found."""

    findings: tuple[Finding, ...]
    """Of this machine, and of the cluster as a whole."""
    nodes: tuple[NodeReport, ...] = ()

    @property
    def all(self) -> tuple[Finding, ...]:
        """Those of all machines."""
        return (*self.findings, *(one for node in self.nodes for one in node.findings))


def record(report: Diagnosis) -> dict[str, Any]:
    """As JSON has it."""
    nodes = [
        {"id": one.id, "address": one.address, "title": one.title, "alike": one.alike, "findings": _listed(one.findings)}
        for one in report.nodes
    ]
    counts = {f"{status}s": count(report.all, status) for status in (FAULT, NOTE)}
    return {"findings": _listed(report.findings), "nodes": nodes, **counts}


def count(findings: Sequence[Finding], status: str) -> int:
    """How many have this status."""
    return sum(one.status == status for one in findings)


def print_diagnosis(report: Diagnosis, console: RichConsole) -> None:
    """Print a table for each machine, and below them what mends each fault and note, whole, so that it can be copied."""
    parts = [("", report.findings), *((one.title, one.findings) for one in report.nodes)]
    for title, findings in parts:
        if title:
            console.print(f"\n[bold]{escape(title)}[/]", soft_wrap=True)
        table = Table("check", "", "found", box=None, pad_edge=False)
        for one in findings:
            table.add_row(escape(one.name), f"[{_COLORS[one.status]}]{one.status}[/]", escape(mask_secrets(one.found)))
        console.print(table)
    for status, heading in ((FAULT, "To mend"), (NOTE, "If you need it")):
        wanted = [(title, one) for title, findings in parts for one in findings if one.status == status and one.mend]
        if wanted:
            console.print(f"\n[bold]{heading}[/]")
            for title, one in wanted:
                where = f" on {title.partition(' (')[0]}" if title else ""
                console.print(f"  {escape(one.name + where)}: {escape(mask_secrets(one.mend))}", soft_wrap=True)
    faults, notes = count(report.all, FAULT), count(report.all, NOTE)
    console.print(f"\n{faults} {'fault' if faults == 1 else 'faults'}, {notes} {'note' if notes == 1 else 'notes'}")


def _listed(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{"name": one.name, "status": one.status, "found": mask_secrets(one.found), "mend": mask_secrets(one.mend)} for one in findings]
