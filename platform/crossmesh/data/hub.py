"""Data sets on the Hugging Face Hub: the files of one split, downloaded or found in the cache."""

import os
import re
from pathlib import Path

from crossmesh.data.layouts import choose_files, is_data
from crossmesh.errors import InputError

_HUB = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.+))?")
_CARD = "README.md"


def hub_files(source: str, split: str, cache: Path) -> list[Path]:
    """Return the data files of `split` of the data set at `source`, on this machine. Raises `InputError` when there are none."""
    match = _HUB.fullmatch(source)
    if match is None:
        raise InputError(
            f"data.source={source!r} is not a dataset address. Allowed: "
            "hf://datasets/owner/name[@revision][/file, folder, pattern or subset]."
        )
    repo, revision, path = match["repo"], match["revision"], match["path"]
    address = source.removesuffix(f"/{path}") if path else source
    folder = _snapshot(source, repo, revision, [_CARD], cache)
    card = folder / _CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    names = _names(repo, folder)
    chosen = choose_files(address, names, split, path, text)
    if not chosen:
        found = ", ".join(name for name in names if is_data(name)) or "none"
        raise InputError(f"{source} has no data file {f'at {path}' if path else f'of split {split!r}'}. Found: {found[:300]}.")
    folder = _snapshot(source, repo, revision, chosen, cache)
    absent = [name for name in chosen if not (folder / name).is_file()]
    if absent:
        raise InputError(f"{source}: {absent[0]} is not in the local cache. Go online once (unset HF_HUB_OFFLINE) to fetch it.")
    return [folder / name for name in chosen]


def _names(repo: str, folder: Path) -> list[str]:
    """Names of all files of the snapshot; offline, of those that are in the cache."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return sorted(HfApi().list_repo_files(repo, repo_type="dataset", revision=folder.name))
    except (OSError, HfHubHTTPError, httpx.HTTPError):  # Offline, or the Hub is away: the cache may hold it all.
        return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def _snapshot(source: str, repo: str, revision: str | None, patterns: list[str], cache: Path) -> Path:
    """Return the folder of a dataset snapshot with the files that match `patterns`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    # HF_HOME and HF_HUB_CACHE are the user's word on where the Hub's files live; without one they go under storage.root.
    chosen_by_user = os.environ.get("HF_HOME") or os.environ.get("HF_HUB_CACHE")
    try:
        return Path(
            snapshot_download(
                repo,
                repo_type="dataset",
                revision=revision,
                allow_patterns=patterns,
                cache_dir=None if chosen_by_user else cache / "huggingface",
            )
        )
    except GatedRepoError as error:
        raise InputError(f"{source} is gated: accept its terms on its page and set HF_TOKEN to a token of that account.") from error
    except RepositoryNotFoundError as error:
        raise InputError(f"{source} does not exist, or is private: check the name, or set HF_TOKEN to a token that may read it.") from error
    except HFValidationError as error:
        raise InputError(
            f"data.source={source!r} is not a dataset address: {error}. Allowed: hf://datasets/owner/name[@revision][/path]."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InputError(
            f"{source} is not in the local cache and could not be downloaded: {error}. Go online (unset HF_HUB_OFFLINE), or point HF_HOME "
            "at a cache that holds it."
        ) from error
