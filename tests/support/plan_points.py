"""Points to plan, made without Hydra: the paper's run, and what tests vary of it."""

from dataclasses import replace
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.planning import PlanSpec
from crossmesh.config.training import BackendSpec, BatchSpec, DataSpec, HardwareSpec, LoraSpec, MeshSpec, ModelSpec, OptimSpec
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.plan.model import planned_model
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.serving.point import ServingPoint
from crossmesh.plan.training.lengths import Filling

GEMMA = parse_architecture(architecture_config("gemma4_31b"), "gemma4_31b.json")
MODEL = planned_model(GEMMA, lora_modules(LoraSpec(rank=64, alpha=64.0), GEMMA))
BASE = planned_model(GEMMA, ())


def paper_spec(**changes: Any) -> ExperimentSpec:
    """The same run as a spec, with layers made again."""
    spec = ExperimentSpec(
        name="paper",
        model=ModelSpec(family="gemma4", weights="hf://google/gemma-4-31b-it", dtype="bfloat16"),
        data=DataSpec(max_length=3072),
        lora=LoraSpec(rank=64, alpha=64.0),
        batch=BatchSpec(8, 1),
        hardware=HardwareSpec("tpu_v5p_8"),
        mesh=MeshSpec(fsdp=1, tp=4),
        backend=BackendSpec(remat="layer"),
        optim=OptimSpec(steps=1244),
        plan=PlanSpec(mean_tokens=922.0, price_max_age_days=10**6),
    )
    return replace(spec, **changes)


def paper_point(**changes: Any) -> TrainingPoint:
    """LoRA of Gemma 4 31B on v5p-8 as the paper ran it: rows padded to 3,072, tensor parallel, layers made again in the backward pass."""
    point = TrainingPoint(
        model=MODEL,
        spec=ModelSpec(family="gemma4", dtype="bfloat16"),
        slice=find_slice("tpu_v5p_8"),
        backend="jax",
        mesh=MeshShape(1, 1, 4),
        batch=8,
        micro=1,
        length=3072,
        remat="layer",
        attention="plain",
        packed=False,
        steps=1244,
        filling=Filling(8.0, 8 * 922.0, 922.0, ((0, 500.0), (1024, 400.0)), ((3072, 1.0),)),
        loss_share=1.0,
    )
    return replace(point, **changes)


def paper_engine(**changes: Any) -> ServingPoint:
    """Gemma 4 31B on v6e-8 with tensor parallelism over all chips."""
    engine = ServingPoint(
        model=BASE,
        slice=find_slice("tpu_v6e_8"),
        tp=8,
        dtype="bfloat16",
        kv_dtype="bfloat16",
        max_model_len=16384,
        max_num_seqs=256,
        memory_share=0.9,
        prompt=4096,
        output=512,
        requests=0,
        step_tokens=8192,
    )
    return replace(engine, **changes)
