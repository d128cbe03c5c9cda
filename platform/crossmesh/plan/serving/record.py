"""The plan of an engine as plain values: what the table shows, what JSON and CSV hold."""

from dataclasses import asdict

from crossmesh.hardware.chips import unit_prices
from crossmesh.plan.figures import MODELLED
from crossmesh.plan.record import PlanRecord, price_json
from crossmesh.plan.serving.engine import usable_engine_bytes
from crossmesh.plan.serving.forecast import ServingForecast
from crossmesh.plan.serving.load import LoadForecast


def serving_record(label: str, planned: ServingForecast) -> PlanRecord:
    """The record of an engine."""
    point, engine = planned.point, planned.engine
    chips = point.slice.device.chip_count()
    held = engine.weights + engine.workspace + engine.batch * engine.kv.sequence(point.prompt + point.output) if engine else None
    return PlanRecord(
        label=label,
        workload="serve",
        hardware=point.slice.name,
        chips=chips,
        settings={
            "tp": point.tp,
            "dtype": point.dtype,
            "kv_dtype": point.kv_dtype,
            "max_model_len": point.max_model_len,
            "max_num_seqs": point.max_num_seqs,
            "prompt_tokens": point.prompt,
            "output_tokens": point.output,
            "max_num_batched_tokens": point.step_tokens,
        },
        fits=planned.fits,
        hbm_bytes_per_chip=held,
        hbm_available_bytes=usable_engine_bytes(point),
        hbm_source=MODELLED if engine else None,
        memory={"weights": engine.weights, "workspace": engine.workspace, "key_value_cache": engine.cache_room} if engine else {},
        step_seconds=engine.decode_s if engine else None,
        step_source=MODELLED if engine else None,
        step_seconds_bound=engine.ttft_bound_s if engine else None,
        tokens_per_s=planned.tokens_per_s,
        usd_per_million_tokens=planned.usd_per_million_tokens,
        limiter=engine.decode_limiter if engine else None,
        rejected_because=" ".join(planned.reasons) or None,
        nearest=planned.nearest or None,
        price=price_json(planned.price),
        unit_prices=asdict(unit_prices(point.chip, chips, planned.price)) if planned.price else None,
        serving=_serving(planned),
        warnings=planned.warnings,
    )


def _serving(planned: ServingForecast) -> dict[str, float] | None:
    point, engine = planned.point, planned.engine
    if engine is None:
        return None
    values = {
        "kv_bytes_per_token_global": engine.kv.global_per_token,
        "kv_bytes_per_token_sliding": engine.kv.sliding_per_token,
        "kv_window": engine.kv.window,
        "kv_bytes_per_sequence": engine.kv.sequence(point.prompt + point.output),
        "concurrent_sequences": engine.sequences,
        "longest_sequence": engine.longest,
        "batch": engine.batch,
        "tokens_per_s_full": engine.tokens_per_s,
        "prefill_seconds": engine.prefill_s,
        "decode_seconds_per_token": engine.decode_s,
        "ttft_seconds_bound": engine.ttft_bound_s,
    }
    return values | (_load(planned.load) if planned.load else {})


def _load(load: LoadForecast) -> dict[str, float]:
    """How the load fared: `ttft`, `tpot` and `e2e` as mean and percentiles of the requests."""
    values = {
        "load_requests": load.requests,
        **({"load_qps": load.qps} if load.qps is not None else {}),
        "load_prompt_tokens_per_s": load.prompt_tokens_per_s,
        "load_requests_per_s": load.requests_per_s,
        "load_batch": load.batch,
        "load_most_waiting": load.waiting,
        "load_preemptions": load.preemptions,
        "load_busy_share": load.busy,
        "sustained_qps": load.sustained_qps,
        "sustained_tokens_per_s": load.sustained_tokens_per_s,
    }
    for name, found in (("ttft", load.ttft), ("tpot", load.tpot), ("e2e", load.e2e)):
        if found is not None:
            values |= {f"{name}_seconds_{part}": value for part, value in asdict(found).items()}
    return values
