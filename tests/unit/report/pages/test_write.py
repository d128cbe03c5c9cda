import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from crossmesh.errors import InputError
from crossmesh.report.pages.html import readable_json, render_html
from crossmesh.report.pages.write import make_report
from crossmesh.report.tables.sheets import tables
from crossmesh.report.tables.terminal import print_report
from crossmesh.report.variants import SCOPES, Results, RunRecord, Score, scores_of

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
    assert make_report(results).write(folder) == folder / "report.html"
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
    report = make_report(mixed).json()
    assert (report["comparable"], report["science_fingerprint"]) == (False, None)


def test_a_loss_that_is_not_a_number_is_null_in_json(results, tmp_path):
    torch = results.variants[1]
    broken = replace(torch, training=replace(torch.training, final_loss=float("nan"), losses=((0, 1.0), (1, float("nan")))))
    path = make_report(replace(results, variants=(results.variants[0], broken, results.variants[2]))).write(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["variants"]["torch"]["losses"] == [[0, 1.0], [1, None]]
    assert "nan" in path.read_text()


def test_the_same_results_give_the_same_bytes(results, folder, tmp_path):
    make_report(results).write(tmp_path)
    for name in ("report.html", "report.json", "report.md"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("scope", SCOPES)
def test_every_record_of_a_run_is_on_the_page(changed, scope):
    report = make_report(changed("jax", **{scope: {"a key of its own": scope}}))
    page = render_html(report.results, report.comparison, report.found)
    assert f"<b>{scope.capitalize()}</b> of jax" in page
    assert "a key of its own" in page


def test_the_page_needs_nothing_else(page):
    loads = [(tag, attrs) for tag, attrs in Outline(page).tags if tag in ("script", "link", "img", "iframe") or "src" in attrs]
    assert loads == [("script", {})]
    addresses = {address for address in re.findall(r"https?://[^\"'\s<>)]+", page) if "www.w3.org" not in address}
    assert addresses == set()
    assert "@import" not in page


def test_the_page_runs_its_own_script_and_no_other(page):
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert not [attrs for _, attrs in Outline(page).tags if any(name.startswith("on") for name in attrs)]


def test_tables_and_figures_are_named_for_readers_who_do_not_see_them(page):
    tags = Outline(page).tags
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in tags if tag == "th")
    assert sum(tag == "caption" for tag, _ in tags) == sum(tag == "table" for tag, _ in tags) == 4  # No table of costs without a price.
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
    text = make_report(mixed).write(tmp_path).read_text()
    assert evil not in text
    assert "alert(1)" in text
    Outline(text)
    assert text.count("<script") == 1


def test_a_report_that_is_not_comparable_says_so_at_its_head_and_over_the_table(changed, tmp_path):
    text = make_report(changed("jax", science={"other": 1})).write(tmp_path).read_text()
    assert text.index("Not comparable in quality or speed") < text.index("What differs")
    assert text.count("Not comparable in quality or speed") == 2


def test_the_terminal_shows_numbers_with_intervals_units_and_source(results):
    console = Console(file=io.StringIO(), width=110)
    print_report(make_report(results), console)
    text = console.file.getvalue()
    assert "Comparable in quality and speed." in text
    assert re.search(r"pass@1, held-out\s*│\s*4\.2\s*│\s*58\.3\s*│\s*60\.4", text)
    assert "44.3 to 71.2" in text
    assert "measured" in text
    assert "not trained" in text
    assert "system.backend" in text


def test_a_table_wider_than_the_terminal_is_shown_in_parts_with_no_word_cut(results):
    printed = {}
    for width in (50, 400):
        console = Console(file=io.StringIO(), width=width)
        print_report(make_report(results), console)
        printed[width] = console.file.getvalue()
    assert max(len(line) for line in printed[50].splitlines()) <= 50
    assert printed[50].count(": training") > printed[400].count(": training") == 1
    assert "tokens/s" in printed[50]
    assert "measured" in printed[50]


def test_every_number_says_where_it_comes_from_and_every_gap_why(served):
    report = make_report(served(flags=("cache hits: 40% of the prompts' tokens were cached",)))
    numbers = [cell for one in report.json()["quantities"] for cell in one["cells"].values()]
    assert all(cell["why"] if cell["value"] is None else cell["source"] for cell in numbers)
    by_key = {one["key"]: one["cells"] for one in report.json()["quantities"]}
    assert by_key["usd"]["jax"] == {
        "value": pytest.approx(1.19389, abs=1e-5),
        "interval": None,
        "source": "measured x published",
        "flags": "",
    }
    assert by_key["mfu"]["torch"]["why"] == "the catalogue has no peak FLOP/s for it"
    assert by_key["output_tokens_per_s/512/256 QPS 4"]["jax"]["flags"].startswith("cache hits: 40%")


def test_a_plan_says_whether_it_was_modelled_or_compiled(results):
    torch = replace(results.variants[1], planned={"planned_tokens_per_s": (900.0, "modelled"), "planned_hbm_gib": (44.2, "compiled")})
    report = make_report(replace(results, variants=(torch, results.variants[2]))).json()
    cells = {one["key"]: one["cells"] for one in report["quantities"]}
    assert [cells[f"planned_{key}"]["torch"]["source"] for key in ("tokens_per_s", "hbm_gib")] == ["modelled", "compiled"]
    assert cells["planned_hbm_gib"]["jax"] == {"value": None, "why": "not planned"}


def test_a_flagged_load_is_shown_and_wins_nothing(served):
    sound, flagged = make_report(served()), make_report(served(flags=("impossible: too fast",)))
    assert {one.quantity.load for one in sound.found.winners if one.quantity.section == "serving"} == {"512/256 QPS 4", "4096/256 QPS 4"}
    assert [one for one in flagged.found.winners if one.quantity.section == "serving"] == []
    serving = next(table for table in tables(flagged.results, flagged.comparison, flagged.found) if table.key == "serving")
    assert [cell.state for row in serving.rows for cell in row if cell.text == "600"] == ["flagged"]


def test_two_hundred_runs_stand_under_each_other_with_what_sets_them_apart(results):
    many = sweep(results, 200)
    report = make_report(many)
    training = next(table for table in tables(report.results, report.comparison, report.found) if table.key == "training")
    assert [column.label for column in training.columns[:4]] == ["Run", "Group", "backend", "micro-batch"]
    assert len(training.rows) == 200
    assert training.filtered
    assert [group.letter for group in report.comparison.groups] == ["A", "B"]
    speed = [one for one in report.found.winners if one.quantity.key == "tokens_per_s"]
    assert [len(one.names) for one in speed] == [100, 100]
    assert {one.best for one in speed} == {"run 198", "run 199"}
    assert "100 runs of group A" in str(tables(report.results, report.comparison, report.found)[0].rows)


def sweep(results, count):
    """Runs of two sciences and two backends; the later, the faster."""
    torch = results.variants[1]
    variants = []
    for number in range(count):
        science = {**torch.record.science, "optimizer": {"learning_rate": (1e-3, 2e-3)[number % 2]}}
        system = {
            "backend": ("torch", "jax")[number // 2 % 2],
            "hardware": "cpu",
            "batch_micro": 2 ** (number // 4 % 3),
            "mesh": {"fsdp": 1, "tp": 1},
        }
        record = RunRecord(f"run {number}", science, system, torch.record.provenance)
        training = replace(torch.training, tokens_per_s=100.0 + number, seconds=500.0 - number)
        variants.append(replace(torch, name=record.name, record=record, training=training, scores=(), run_id=f"{number:032x}"))
    return replace(results, variants=tuple(variants))


def test_markdown_has_the_tables_and_takes_nothing_for_markup(results, served, tmp_path):
    make_report(replace(served(), experiment="a|b <i>*c*")).write(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# a\\|b &lt;i&gt;\\*c\\*\n\n**base 4.2% → tuned 58.3 to 60.4% of held-out problems solved**\n\n**Comparable in")
    assert "| pass@1, held-out (%, 48 problems simulated, 95% interval (Wilson)) | 4.2 (1.1 to 14.0, measured) |" in text
    widths = {line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith(("| Wall clock", "| Quantity"))}
    assert len(widths) == 1


def test_names_are_not_taken_for_markup(results):
    console = Console(file=io.StringIO(), width=110)
    odd = replace(results, experiment="[red]x[/red]")
    print_report(make_report(odd), console)
    assert "[red]x[/red]" in console.file.getvalue()


def test_only_a_base_still_makes_a_report(results, tmp_path):
    assert make_report(replace(results, variants=results.variants[:1])).write(tmp_path).exists()


def test_inputs_that_cannot_be_are_refused(results):
    with pytest.raises(InputError, match="distinct names"):
        Results("x", (results.variants[0], results.variants[0]), "make")
    with pytest.raises(InputError, match="pass@1 on 'heldout'"):
        Score("heldout", 1, 0.5, 0.6, 0.7, 0.95, "wilson", 10)


def test_evaluations_become_scores():
    from crossmesh.evaluate.passk import PassAtK
    from crossmesh.evaluate.results import EvalResult, SplitResult

    estimate = PassAtK(1, 0.5, 0.3, 0.7, 0.95, "wilson", 20)
    split = SplitResult("heldout", 20, 20, 10, (estimate,), {"passed": 10})
    result = EvalResult("torch", (split,), {}, (), {}, 0, 0, 0, 1.0, "", ())
    assert scores_of(result) == (Score("heldout", 1, 0.5, 0.3, 0.7, 0.95, "wilson", 20),)


def test_readable_json_breaks_only_what_is_too_long():
    text = readable_json({"short": [1, 2, 3], "long": ["x" * 40] * 4})
    assert json.loads(text) == {"short": [1, 2, 3], "long": ["x" * 40] * 4}
    assert '"short": [1, 2, 3]' in text
    assert max(len(line) for line in text.splitlines()) <= 110


def test_the_answer_that_a_person_came_for_is_the_first_line(results, changed):
    said = "base 4.2% → tuned 58.3 to 60.4% of held-out problems solved"
    report = make_report(results)
    console = Console(file=io.StringIO(), width=110)
    print_report(report, console)
    assert console.file.getvalue().splitlines()[0] == said
    assert report.json()["answer"] == said
    alone = make_report(replace(results, variants=results.variants[:2])).json()["answer"]
    assert alone == "base 4.2% → torch 58.3% of held-out problems solved"
    other = make_report(changed("jax", evaluation={"task": "another"})).json()["answer"]
    assert other == "base 4.2% → tuned 58.3% of held-out problems solved"  # jax was examined otherwise: not beside base.


def test_the_answer_stands_over_the_verdict_and_charts_over_tables(page):
    assert page.index('class="came-for"') < page.index("Comparable in quality and speed") < page.index('id="charts"')
    assert page.index('id="charts"') < page.index('id="differences"') < page.index('id="training"')
