"""Whether `storage.root` can hold what jobs keep, and whether other nodes could share it."""

from collections.abc import Iterator

from crossmesh.cluster import users_cluster
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.services import tracked_in_storage
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
    if users_cluster() is not None:
        yield shared_finding(mount)


def shared_finding(mount: Mount) -> Finding:
    """Whether the nodes of a cluster can have the same folder, with locks that hold between them."""
    if not mount.of_network:
        found = f"{mount.kind} is of this machine: other nodes of the cluster would see another folder"
        return note("storage, shared", found, _MEND)
    if mount.locks_stay_here:
        found = f"{mount.source} is mounted with locks that hold on this machine only ({', '.join(mount.options)})"
        return fault("storage, shared", found, f"sudo umount {mount.point} && sudo mount -t nfs -o hard {mount.source} {mount.point}")
    return ok("storage, shared", f"{mount.source}, {mount.kind}")
