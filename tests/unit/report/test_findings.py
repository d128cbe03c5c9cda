from dataclasses import replace

import pytest

from crossmesh.config.verdicts import MattersSpec
from crossmesh.report.findings import headline, lead, loss_gaps, repeat_command, small
from crossmesh.report.gate.comparable import compare_variants
from crossmesh.report.pages.html import render_html
from crossmesh.report.pages.write import make_report
from crossmesh.report.tables.sheets import computed
from crossmesh.report.variants import Score


def with_score(results, name, value, low, high):
    scores = (Score("heldout", 1, value, low, high, 0.95, "wilson", 48),)
    return replace(results, variants=tuple(replace(v, scores=scores) if v.name == name else v for v in results.variants))


def found(results):
    return {one["aspect"]: one for one in make_report(results).json()["findings"]}


def test_like_backends_are_not_ranked_and_beat_the_base(results):
    quality = found(results)["quality"]
    assert quality["answer"] == "No difference shown; both beat base"
    assert "jax against torch: +2.1 points (-17.0 to +21.0)." in quality["reasons"]


def test_the_same_problems_are_compared_one_by_one(results):
    """Of 40 problems jax solves 8 that torch does not and torch 1 that jax does not: exact McNemar p = 2 x (1 + 9) / 2^9."""
    solved = {"torch": set(range(11)), "jax": set(range(1, 19))}
    variants = tuple(
        replace(v, answers={"heldout": {str(n): (1, int(n in solved[v.name])) for n in range(40)}}) if v.name in solved else v
        for v in with_score(with_score(results, "torch", 11 / 40, 0.16, 0.43), "jax", 18 / 40, 0.31, 0.6).variants
    )
    quality = found(replace(results, variants=variants))["quality"]
    assert quality["answer"] == "jax, by 17.5 points"
    assert any("p = 0.039 (exact McNemar)" in reason for reason in quality["reasons"])


def test_the_base_is_compared_one_by_one_too(results):
    """torch solves 10 problems that the base does not, and none the other way: exact McNemar p = 2 / 2^10."""
    solved = {"base": set(range(2)), "torch": set(range(12))}
    variants = tuple(
        replace(v, answers={"heldout": {str(n): (1, int(n in solved[v.name])) for n in range(48)}}) if v.name in solved else v
        for v in results.variants
    )
    reasons = found(replace(results, variants=variants))["quality"]["reasons"]
    assert any(reason.startswith("torch against base: ") and reason.endswith(", p = 0.002 (exact McNemar).") for reason in reasons)


def test_a_clear_winner_is_named_with_its_margin(results):
    assert found(with_score(results, "jax", 0.9, 0.83, 0.95))["quality"]["answer"] == "jax, by 31.7 points"


def test_nothing_is_ranked_across_other_science(changed, results):
    report = make_report(changed("jax", science={**results.variants[1].record.science, "packing": "yes"}))
    answers = {one["aspect"]: one["answer"] for one in report.json()["findings"]}
    assert (answers["quality"], answers["speed"]) == ("Not compared", "Not compared")
    assert headline(report.comparison) == "Not comparable in quality or speed: 1 key differs."
    assert {one.best for one in report.found.winners} == {"torch", "jax"}  # Each against the base alone.
    assert {one.quantity.section for one in report.found.winners} == {"evaluation"}


def test_speed_stays_comparable_when_only_the_examination_differs(changed, results):
    report = make_report(changed("jax", evaluation={**results.variants[1].record.evaluation, "dtype": "bfloat16"}))
    assert report.comparison.gates["speed"].state == "comparable"
    assert found(report.results)["speed"]["answer"] == "Not decided: one run each"


def test_speed_is_won_over_interleaved_repeats_only(results, repeated):
    """One run each decides nothing, however far apart; three rounds do: 1.20, 1.21, 1.19 times as fast."""
    speed = found(replace(results, where=("storage.root=/my runs",)))["speed"]
    assert speed["answer"] == "Not decided: one run each"
    command = "python jobs/compare.py 'runs=[runtorch0123,runjax012345]' repeat=3 'storage.root=/my runs'"
    assert f"To decide it: {command}" in speed["reasons"]
    rates = {"torch": (120.0, 121.0, 119.0), "jax": (100.0, 100.0, 100.0)}
    assert found(repeated(**rates))["speed"]["answer"] == "torch, by 20.0%"
    two = {name: own[:2] for name, own in rates.items()}
    assert found(repeated(**two))["speed"]["answer"] == "Not decided: fewer than 3 interleaved repeats of each"
    apart = repeated(repeated(torch=rates["torch"], session="one"), jax=rates["jax"], session="two")
    assert found(apart)["speed"]["answer"] == "Not decided: fewer than 3 interleaved repeats of each"


def test_a_repeat_under_load_is_named_and_decides_nothing(repeated):
    speed = found(repeated(torch=(120.0, 121.0, 119.0), jax=(100.0, 100.0, 100.0), loaded={("jax", 2)}))["speed"]
    assert speed["answer"] == "Not decided: fewer than 3 interleaved repeats of each; under load: jax (12% of the CPU stolen)"


def test_speeds_that_a_machine_alone_may_part_are_not_ranked(repeated):
    assert found(repeated(torch=(127.4, 95.0, 104.0), jax=(100.0, 119.2, 101.0)))["speed"]["answer"] == "No difference shown"
    assert found(repeated(torch=(101.0, 101.1, 100.9), jax=(100.0, 100.0, 100.0)))["speed"]["answer"] == "Equal within 2%"


def with_losses(results, torch, jax):
    finals = {"torch": torch, "jax": jax}
    variants = (replace(v, scores=(), training=replace(v.training, final_loss=finals[v.name])) for v in results.trained)
    return replace(results, variants=tuple(variants))


def test_losses_that_no_one_could_tell_apart_are_equal(results):
    assert found(with_losses(results, 0.1139, 0.1139 + 5e-7))["quality"]["answer"] == "Equal within 0.001 nats"
    assert found(with_losses(results, 0.1139, 0.1189))["quality"]["answer"] == "torch, by 0.0050 nats"
    finer = replace(with_losses(results, 0.1139, 0.1139 + 5e-4), matters=MattersSpec(loss=1e-4))
    assert found(finer)["quality"]["answer"] == "torch, by 0.0005 nats"


def test_the_best_of_several_pays_for_being_picked(results):
    """9 problems against 1: exact McNemar p = 0.021; picked as the best of three against two like that, 0.043; of four, 0.064."""
    torch = results.variants[1]

    def solved(name, ones):
        return replace(torch, name=name, run_id=name, answers={"heldout": {str(n): (1, int(n in ones)) for n in range(40)}})

    best = solved("best", set(range(1, 10)))
    best = replace(best, scores=(replace(best.scores[0], value=0.6),))
    others = [solved(f"other {n}", {0}) for n in range(3)]
    margins = []
    for count in (1, 2, 3):
        report = make_report(replace(results, variants=(best, *others[:count])))
        won = next(one for one in report.found.winners if one.quantity.key == "pass_at_1/heldout")
        margins.append((round(won.margin.p_value, 3), won.verdict))
    assert margins == [(0.021, "shown"), (0.043, "shown"), (0.064, "no difference shown")]
    assert "Holm-corrected for 3 comparisons" in won.words


def test_confounders_stand_beside_a_speed_that_is_claimed(changed, results):
    provenance = {**results.variants[1].record.provenance, "python": "3.12.0"}
    report = make_report(changed("jax", provenance=provenance))
    assert any("May be due to python as well" in reason for reason in found(report.results)["speed"]["reasons"])
    assert headline(report.comparison) == "Comparable in quality and speed, with 1 confounder."


def test_a_base_alone_is_no_comparison(results):
    alone = replace(results, variants=results.variants[:1])
    assert headline(make_report(alone).comparison) == "One run, nothing to compare it with."
    assert {one["verdict"] for one in found(alone).values()} == {"nothing to compare"}


def test_costs_name_the_cheaper_and_say_when_there_is_no_price(results, priced, repeated):
    """torch: 107.2 s at 10 USD/h; jax: 214.9 s at 20: 0.2978 against 1.1939 USD, for 18,240 tokens each."""
    assert found(priced())["cost"]["answer"] == "Not decided: one run each"
    raced = repeated(priced(), torch=(100.0, 101.0, 102.0), jax=(100.0, 101.0, 102.0))
    assert found(raced)["cost"]["answer"] == "torch, by 50.0%"  # Half the price at the same speed.
    assert found(results)["cost"]["answer"] == "Not known"


def test_the_lead_says_what_is_compared(results):
    said = lead(results, make_report(results).comparison)
    assert said[0] == "torch and jax have the same science record and were examined the same way."
    assert said[1] == "Compared: backend (torch or jax)."


def test_gaps_cover_common_finite_steps_only(results):
    torch, jax = results.trained
    jax = replace(jax, training=replace(jax.training, losses=((0, 1.5), (1, float("nan")), (99, 1.0))))
    torch = replace(torch, training=replace(torch.training, losses=((0, 1.0), (1, 1.0), (2, 1.0))))
    assert loss_gaps((torch, jax)) == ((0, 0.5),)


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (4e-5, "0.000040"), (0.123, "0.12"), (2.5, "2.50"), (3e-9, "less than 0.000001")])
def test_small_numbers_have_no_exponent(value, text):
    assert small(value) == text


def test_a_command_names_runs_by_how_their_ids_begin_unless_that_reads_as_a_number(results):
    ids = ("0123456789abcdef", "123456789e12abcd", "1234567890123abc", "12e4ffffffffffff")
    assert "'runs=[0123456789ab,123456789e12abcd,1234567890123abc,12e4ffffffff]'" in repeat_command(results, *ids)


def test_losses_that_are_the_same_are_said_to_be(results):
    torch, jax = results.trained
    same = replace(results, variants=(torch, replace(jax, training=torch.training)))
    assert lead(same, compare_variants(same.variants))[-1] == "Step for step their losses are equal."
    page = render_html(same, compare_variants(same.variants), computed(same, compare_variants(same.variants)))
    assert "lower panel" not in page
    assert "The lower panel is" in render_html(
        results, compare_variants(results.variants), computed(results, compare_variants(results.variants))
    )
