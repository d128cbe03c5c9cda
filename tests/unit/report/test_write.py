import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from crossmesh.errors import InputError
from crossmesh.report.html import readable_json
from crossmesh.report.tables import print_report
from crossmesh.report.variants import Results, Score, scores_of
from crossmesh.report.write import compare_results, report_json, write_report

VOID = {"meta", "wbr", "br", "link", "img", "use", "path"}


class Outline(HTMLParser):
    """Tags and attributes of a page; fails on tags that do not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "made"
    assert write_report(results, folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text()


def test_json_has_the_promised_keys(results, folder):
    report = json.loads((folder / "report.json").read_text())
    assert report["comparable"] is True
    assert report["source"] == "measured"
    assert report["science_fingerprint"] == results.variants[1].record.fingerprint("science")
    assert [one["key"] for one in report["differences"]] == ["backend"]
    base, jax = report["variants"]["base"], report["variants"]["jax"]
    assert (base["pass_at_1"], base["n"]) == (pytest.approx(2 / 48), 48)
    assert (base["final_loss"], base["tokens_per_s"], base["adapter_bytes"]) == (None, None, None)
    assert jax["tokens_per_s"] == 98.6
    assert jax["splits"]["hard"]["pass_at_1"]["high"] == 0.3539
    assert jax["pass_at_1_interval"] == [0.4631, 0.7301]


def test_no_common_science_no_common_fingerprint(changed):
    mixed = changed("jax", science={"other": 1})
    report = report_json(mixed, compare_results(mixed))
    assert (report["comparable"], report["science_fingerprint"]) == (False, None)


def test_a_loss_that_is_not_a_number_is_null_in_json(results, tmp_path):
    torch = results.variants[1]
    broken = replace(torch, training=replace(torch.training, final_loss=float("nan"), losses=((0, 1.0), (1, float("nan")))))
    path = write_report(replace(results, variants=(results.variants[0], broken, results.variants[2])), tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["variants"]["torch"]["losses"] == [[0, 1.0], [1, None]]
    assert "nan" in path.read_text()


def test_the_same_results_give_the_same_bytes(results, folder, tmp_path):
    write_report(results, tmp_path)
    for name in ("report.html", "report.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_the_page_needs_nothing_else(page):
    loads = [(tag, attrs) for tag, attrs in Outline(page).tags if tag in ("script", "link", "img", "iframe") or "src" in attrs]
    assert loads == []
    addresses = {address for address in re.findall(r"https?://[^\"'\s<>)]+", page) if "www.w3.org" not in address}
    assert addresses == set()
    assert "@import" not in page


def test_tables_and_figures_are_named_for_readers_who_do_not_see_them(page):
    tags = Outline(page).tags
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in tags if tag == "th")
    assert sum(tag == "caption" for tag, _ in tags) == sum(tag == "table" for tag, _ in tags) == 3
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = [attrs[key] for _, attrs in tags for key in ("aria-labelledby", "aria-describedby") if key in attrs]
    assert set(named) <= set(ids)
    assert sum(tag == "figure" for tag, _ in tags) == 3
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', page))
    assert used <= set(ids)


def test_colours_are_the_pages_own(page):
    svg = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}", svg) == []
    assert "var(--series-1)" in svg
    assert "mathdefault" not in svg


def test_everything_from_outside_is_escaped(results, changed, tmp_path):
    evil = "<script>alert(1)</script>"
    torch = replace(results.variants[1], name=evil, record=replace(results.variants[1].record, name=evil), run_id=evil)
    mixed = replace(results, experiment=evil, command=f"run {evil} & more", variants=(results.variants[0], torch, results.variants[2]))
    text = write_report(mixed, tmp_path).read_text()
    assert evil not in text
    assert "alert(1)" in text
    Outline(text)
    assert "<script" not in text


def test_a_report_that_is_not_comparable_says_so_at_its_head_and_over_the_table(changed, tmp_path):
    text = write_report(changed("jax", science={"other": 1}), tmp_path).read_text()
    assert text.index("Not comparable, neither in quality nor in speed") < text.index("What differs")
    assert text.count("Not comparable, neither in quality nor in speed") == 2


def test_the_terminal_shows_numbers_with_intervals_units_and_source(results):
    console = Console(file=io.StringIO(), width=110)
    print_report(results, compare_results(results), console)
    text = console.file.getvalue()
    assert "Comparable in quality and speed." in text
    assert re.search(r"pass@1, held-out\s*│\s*4\.2 │\s*58\.3 │\s*60\.4 │ %\s*│ measured", text)
    assert "44.3 to 71.2" in text
    assert "not trained" in text
    assert "system.backend" in text


def test_names_are_not_taken_for_markup(results):
    console = Console(file=io.StringIO(), width=110)
    odd = replace(results, experiment="[red]x[/red]")
    print_report(odd, compare_results(odd), console)
    assert "[red]x[/red]" in console.file.getvalue()


def test_only_a_base_still_makes_a_report(results, tmp_path):
    assert write_report(replace(results, variants=results.variants[:1]), tmp_path).exists()


def test_inputs_that_cannot_be_are_refused(results):
    with pytest.raises(InputError, match="distinct names"):
        Results("x", (results.variants[0], results.variants[0]), "make")
    with pytest.raises(InputError, match="pass@1 on 'heldout'"):
        Score("heldout", 1, 0.5, 0.6, 0.7, 0.95, "wilson", 10)


def test_evaluations_become_scores():
    from crossmesh.evaluate.harness import EvalResult, SplitResult
    from crossmesh.evaluate.passk import PassAtK

    estimate = PassAtK(1, 0.5, 0.3, 0.7, 0.95, "wilson", 20)
    split = SplitResult("heldout", 20, 20, 10, (estimate,), {"passed": 10})
    result = EvalResult("torch", (split,), {}, (), {}, 0, 0, 0, 1.0, "", ())
    assert scores_of(result) == (Score("heldout", 1, 0.5, 0.3, 0.7, 0.95, "wilson", 20),)


def test_readable_json_breaks_only_what_is_too_long():
    text = readable_json({"short": [1, 2, 3], "long": ["x" * 40] * 4})
    assert json.loads(text) == {"short": [1, 2, 3], "long": ["x" * 40] * 4}
    assert '"short": [1, 2, 3]' in text
    assert max(len(line) for line in text.splitlines()) <= 110
