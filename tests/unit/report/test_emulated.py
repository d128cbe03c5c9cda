"""A run on CPU devices under the name of other hardware: no price, no rate beside a real one, and said by name."""

from dataclasses import replace

from crossmesh.report.pages.write import make_report
from crossmesh.report.variants import EMULATED_RENT, Results


def emulate(results: Results, *names: str, by: str = "record") -> Results:
    def marked(one):
        if one.name not in names:
            return one
        if by == "tag":
            return replace(one, marked_emulated=True, rent=EMULATED_RENT)
        return replace(one, record=replace(one.record, system={**one.record.system, "emulated": True}), rent=EMULATED_RENT)

    return replace(results, variants=tuple(marked(one) for one in results.variants))


def test_beside_a_real_run_it_has_no_rate_and_speed_and_cost_are_not_compared(priced):
    for by in ("record", "tag"):
        report = make_report(emulate(priced(), "jax", by=by))
        gates = report.json()["gates"]
        assert (gates["speed"]["state"], gates["quality"]["state"]) == ("not comparable", "comparable")
        assert gates["cost"]["state"] in ("not comparable", "nothing to compare")
        found = {one.key: one for one in report.found.quantities}
        for key in ("tokens_per_s", "wall_clock_s", "seconds_per_sample", "padded_tokens_per_s", "mfu", "energy_wh"):
            assert found[key].cells["jax"].text in ("emulated on CPU devices", "not recorded by this run"), key
            assert "jax" not in found[key].estimates
        assert found["usd"].cells["jax"].text == "emulated on CPU devices: no price"
        assert found["final_loss"].cells["jax"].value is not None
        values = report.json()["variants"]["jax"]
        assert (values["emulated"], values["tokens_per_s"], values["seconds"]) == (True, None, None)
        assert [one["key"] for one in report.json()["differences"] if "emulated" in one["effect"]] == ["emulated"]
        assert not report.comparison.comparable


def test_beside_emulated_runs_its_rate_is_shown_and_marked_and_costs_nothing(priced):
    report = make_report(emulate(priced(), "torch", "jax"))
    found = {one.key: one for one in report.found.quantities}
    for name in ("torch", "jax"):
        assert "emulated" in found["tokens_per_s"].cells[name].note
        assert found["usd"].cells[name].value is None
    assert report.json()["gates"]["speed"]["state"] == "comparable"
    assert all(one["emulated"] for name, one in report.json()["variants"].items() if name != "base")
