"""What 4-bit weights need of the torch backend: pure rules, checked before anything starts and again by the worker.

The JAX backend quantizes by itself, on every device; its rule is `placement.nf4_tile`.
"""

from crossmesh.errors import InputError
from crossmesh.hardware.mesh import MeshShape


def check_torch_quantization(quantization: str, mesh: MeshShape, *, cpu: bool) -> None:
    """Raise `InputError` when the torch backend cannot keep weights in `quantization` (`ModelSpec.quantization`) on this mesh."""
    if quantization == "none":
        return
    given = f"model.quantization={quantization} on the torch backend"
    if cpu:
        raise InputError(f"{given} needs a GPU: bitsandbytes' 4-bit products run there. Allowed on a CPU: none, or backend=jax.")
    if mesh.fsdp > 1 or mesh.tp > 1:
        raise InputError(
            f"{given} with mesh.fsdp={mesh.fsdp}, mesh.tp={mesh.tp}: bitsandbytes' weights are whole on each GPU. "
            f"Allowed: fsdp and tp 1 (mesh.data={mesh.fsdp * mesh.tp * mesh.data}), or quantization=none."
        )
