"""Whether what must stay secret does: Ray's token, key files, and Ray's authentication itself. Never reads what is in a file."""

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from crossmesh.cluster.session import users_cluster
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.doctor.finding import Finding, fault, note, ok


def check_private_files(spec: ExperimentSpec) -> Iterator[Finding]:
    """Ray's token and the files that only their owner may read."""
    token = token_file(os.environ)
    yield token_finding(os.environ, token, cluster=users_cluster() is not None)
    secrets = spec.storage.path / "secrets"
    own = sorted(file for file in secrets.iterdir() if file.is_file()) if secrets.is_dir() else []
    yield modes_finding([token, *own, *([Path(spec.serve.tls_key)] if spec.serve.tls_key else [])])


def token_file(environ: Mapping[str, str]) -> Path:
    """Where Ray looks for its token."""
    return Path(environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def token_finding(environ: Mapping[str, str], file: Path, *, cluster: bool) -> Finding:
    """Whether connections to Ray need a token; `cluster`: there is one that the user connects to."""
    if environ.get("RAY_AUTH_MODE") == "disabled":
        return fault("Ray's token", "RAY_AUTH_MODE=disabled: whoever reaches Ray's ports runs code as you", "unset RAY_AUTH_MODE")
    if environ.get("RAY_AUTH_TOKEN"):
        return ok("Ray's token", "in RAY_AUTH_TOKEN")
    if file.is_file():
        return ok("Ray's token", f"in {file}")
    if cluster:
        mend = f"scp HEAD:.ray/auth_token {file} && chmod 600 {file}    # the cluster's"
        return note("Ray's token", f"there is none in {file}: a cluster with one refuses this machine", mend)
    return ok("Ray's token", "none yet; the first local job makes one")


def modes_finding(files: list[Path]) -> Finding:
    """Whether only their owner reads `files`; those that do not exist are none."""
    there = [file for file in files if file.is_file()]
    open_ones = [file for file in there if stat.S_IMODE(file.stat().st_mode) & 0o077]
    if not open_ones:
        return ok("secret files", f"{len(there)} found, readable by their owner only")
    listed = ", ".join(f"{file} ({stat.S_IMODE(file.stat().st_mode):04o})" for file in open_ones)
    return fault("secret files", f"others may read {listed}", f"chmod 600 {' '.join(shlex.quote(str(file)) for file in open_ones)}")
