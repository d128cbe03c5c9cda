"""Publish an exported folder on the Hugging Face hub, in one commit: whole or not at all.

Nothing is published without a passing proof and the licence of the base, unless the first is forced, and then the card says so.
Reads HF_TOKEN and HF_ENDPOINT through huggingface_hub.
"""

import json
import re
from dataclasses import dataclass

from crossmesh.adapters.export import Exported
from crossmesh.adapters.model_card import CARD, Licence, base_licence, model_card
from crossmesh.adapters.peft_format import OpenAdapter, adapter_digest
from crossmesh.adapters.proof import PROOF_FILE, Proof, read_proof
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.models.weights.fetch import MANIFEST
from crossmesh.models.weights.stores import Store
from crossmesh.track.tracked_run import TrackedRun

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_GIT_FILE = ".gitattributes"


@dataclass(frozen=True)
class Publication:
    """What is needed to publish, checked before anything is computed."""

    repository: str
    """`owner/name`."""
    proof: Proof
    licence: Licence
    run: TrackedRun | None
    """The run that trained the adapter."""

    def publish(self, exported: Exported) -> str:
        """Publish the exported folder and return the address of the commit. A repository that has to be made is private.

        Raises `InputError` when the repository holds other files, which are left as they are; `CrossmeshError` when the hub refuses.
        """
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.errors import HFValidationError, HTTPError  # HTTPError: of whichever client the hub uses

        api = HfApi()
        # The manifest says where on this machine everything came from; its digests are in the card.
        files = {file.name: file for file in sorted(exported.folder.iterdir()) if file.name not in (CARD, MANIFEST)}
        operations = [CommitOperationAdd(name, str(file)) for name, file in files.items()]
        operations.append(CommitOperationAdd(CARD, model_card(exported, self.run, self.licence, self.proof).encode()))
        if self.proof.record:
            operations.append(CommitOperationAdd(PROOF_FILE, json.dumps(self.proof.record, indent=2, sort_keys=True).encode()))
        ours = {_GIT_FILE, CARD, PROOF_FILE, *files}
        message = f"{exported.mode} {exported.adapter_digest[:16]}" + ("" if self.proof.passed else ", forced without a passing proof")
        try:
            api.create_repo(self.repository, private=True, exist_ok=True)
            others = sorted(set(api.list_repo_files(self.repository)) - ours)
            if others:
                raise InputError(
                    f"publish={self.repository!r} holds other files, e.g. {others[0]}: it is left as it is. Give another name."
                )
            return str(api.create_commit(self.repository, operations, commit_message=message).commit_url)
        except (HFValidationError, HTTPError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise CrossmeshError(
                f"publish={self.repository!r} did not work: {reason}. What was exported is complete, in {exported.folder}. Set HF_TOKEN to "
                "a token that may write there."
            ) from error


def prepare_publication(
    repository: str, adapter: OpenAdapter, base: Store, run: TrackedRun | None, *, proof: str, licence: str, force: bool
) -> Publication:
    """Check what can be checked before the export. Raises `InputError` for a bad name, no passing proof (unless `force`), no licence."""
    if not _REPOSITORY.fullmatch(repository):
        raise InputError(f"publish={repository!r} is not possible. Allowed: owner/name.")
    return Publication(repository, read_proof(proof, adapter_digest(adapter.folder), force=force), base_licence(base, licence), run)
