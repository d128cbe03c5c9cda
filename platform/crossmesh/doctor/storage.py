"""Whether `storage.root` can hold what jobs keep."""

from collections.abc import Iterator

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import tracked_in_storage
from crossmesh.doctor.finding import Finding, fault, ok
from crossmesh.storage_check import ON_BUCKETS, Mount, failures, mount_of

_MEND = "sudo mount -t nfs SERVER:/SHARE /mnt/crossmesh && export CROSSMESH_STORAGE=/mnt/crossmesh    # or a folder on a local disk"


def check_storage(spec: ExperimentSpec) -> Iterator[Finding]:
    """Every operation that jobs rely on, tried now; and what kind of place it is."""
    root = spec.storage.path
    mount = mount_of(root)
    where = f"{root} on {mount.kind or 'an unknown file system'}"
    try:
        found = failures(root, mount, sqlite=tracked_in_storage(spec.tracking, spec.storage))
    except OSError as error:
        yield fault("storage", f"{where}: {error.strerror}", f"df -h {root}    # make room, or export CROSSMESH_STORAGE=/larger/disk")
        return
    if found:
        listed = "; ".join(f"{one.operation}: {one.reason}" for one in found)
        yield fault("storage", f"{where}. {listed}. A bucket may hold {ON_BUCKETS}", _MEND)
        return
    yield ok("storage", where)
    if mount.of_network and mount.locks_stay_here:
        yield locks_finding(mount)


def locks_finding(mount: Mount) -> Finding:
    """A share whose locks keep out nobody on other machines. Whether nodes see one folder at all is tried on each (`sharing.py`)."""
    found = f"{mount.source} is mounted with locks that hold on this machine only ({', '.join(mount.options)})"
    return fault("storage, locks", found, f"sudo umount {mount.point} && sudo mount -t nfs -o hard {mount.source} {mount.point}")
