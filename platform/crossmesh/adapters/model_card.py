"""The model card of an export: metadata as the hub reads it, then digests, proof, fingerprints, figures and the experiment. Text only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossmesh.adapters.export import Exported
from crossmesh.adapters.proof import Proof
from crossmesh.errors import InputError
from crossmesh.models.weights.stores import Store, read_small
from crossmesh.track.tracked_run import TAG_IDENTITY, TAG_SCIENCE, TAG_SYSTEM, TrackedRun

CARD = "README.md"
_PROOF_KEYS = ("check", "passed", "bound", "worst", "source")
_SHOWN = ("model", "data", "lora", "optim", "batch", "packing", "mesh", "hardware", "backend")
"""Groups of the spec that say how the adapter was trained; the others are of the machine that did it."""
_KINDS = {"adapter": "LoRA adapter (PEFT)", "serving": "LoRA adapter in the form that vLLM serves", "merged": "Merged model"}


@dataclass(frozen=True)
class Licence:
    """Under what the base was given away, and so what is made of it."""

    name: str
    link: str = ""


def base_licence(base: Store, given: str) -> Licence:
    """Return the licence of the base: `given`, or what the base's own model card says.

    Raises `InputError` when neither says one: who publishes must know.
    """
    if given:
        return Licence(given)
    data: Mapping[str, Any] = {}
    if CARD in base.names():
        from huggingface_hub import ModelCard  # Reads HF_* variables when imported.

        try:
            data = ModelCard(read_small(base, CARD).decode("utf-8"), ignore_metadata_errors=True).data.to_dict()
        except Exception:  # noqa: BLE001 - Whatever is wrong with a foreign card, it then says nothing.
            data = {}
    if not data.get("license"):
        raise InputError(f"{base.address} has no model card that says a licence. Give its name as licence=, e.g. licence=apache-2.0.")
    return Licence(str(data["license"]), str(data.get("license_link") or ""))


def model_card(exported: Exported, run: TrackedRun | None, licence: Licence, proof: Proof) -> str:
    """Write the card of `exported`; `run` is the run that trained the adapter, when it is known."""
    from huggingface_hub import ModelCardData

    adapter, base = exported.mode != "merged", _hub_name(exported.base)
    metadata = ModelCardData(
        base_model=base,
        base_model_relation=("adapter" if adapter else "finetune") if base else None,
        library_name="peft" if adapter else "transformers",
        license=licence.name,
        license_link=licence.link or None,
        pipeline_tag="text-generation",
        tags=["crossmesh", "lora"],
    )
    verdict = "passed" if proof.passed else "none that passed, published with force=true"
    tags, params, metrics = (run.tags, run.params, run.metrics) if run else ({}, {}, {})
    sections: dict[str, Mapping[str, Any]] = {
        "Digests (SHA-256)": {"trained adapter": exported.adapter_digest, **exported.digests},
        f"Proof of exchange: {verdict}": {key: proof.record[key] for key in _PROOF_KEYS if key in proof.record},
        "Fingerprints": {tag: tags[tag] for tag in (TAG_IDENTITY, TAG_SCIENCE, TAG_SYSTEM) if tag in tags},
        "Figures": {key: f"{value:.6g}" for key, value in sorted(metrics.items()) if key.startswith("train/")},
        "Experiment": {key: value for key, value in sorted(params.items()) if key.partition(".")[0] in _SHOWN},
    }
    lines = [
        f"# {_KINDS[exported.mode]} of {base or 'a local base'}",
        f"Rank {exported.rank}, alpha {exported.alpha:g}, {exported.modules} modules. Made by crossmesh.",
        f"The licence of the base holds: {licence.name}.",
    ]
    if run and run.emulated:
        lines.append("Trained on emulated devices: times and rates say nothing of the hardware that is named.")
    for title, values in sections.items():
        if values or "Proof" in title:
            lines += [f"## {title}", *_table(values)]
    return f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join(lines) + "\n"


def _hub_name(address: str) -> str | None:
    """`owner/name` of a base of the hub."""
    return address.removeprefix("hf://").partition("@")[0] if address.startswith("hf://") else None


def _table(values: Mapping[str, Any]) -> list[str]:
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in values.items()]
    return ["\n".join(["| | |", "| --- | --- |", *rows])] if rows else []


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
