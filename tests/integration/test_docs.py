"""The documentation site builds with every warning an error, and its notebooks run."""

import os
import re
import subprocess

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.full]


@pytest.fixture(scope="module")
def python(checkout):
    """The interpreter of the environment that `make docs` makes."""
    found = checkout / ".docs" / "bin" / "python"
    if not found.exists():
        pytest.skip("needs .docs: run `make docs`")
    return found


@pytest.fixture(scope="module")
def site(checkout, python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [python, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    subprocess.run(command, cwd=checkout, check=True, timeout=300)
    return folder


def test_no_page_of_the_site_fetches_anything(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert not re.search(r"<(script|link|img|iframe)\b[^>]*(src|href)=[\"']?(https?:)?//", page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("reference/keys.html", ["optim.learning_rate", "Optimizer steps", "science", "data.rtl.seed"]),
        ("reference/commands.html", ["crossmesh finetune experiment=demo", "repeat_steps"]),
        ("reference/environment.html", ["CROSSMESH_STORAGE"]),
        ("reference/hardware.html", ["tpu_v5p_8"]),
        ("api.html", ["crossmesh.plugins", "Registry", "RejectedError", "resolve_mesh"]),
        ("source/cluster.yaml.html", ["cluster_name"]),
        ("contributing.html", ["import-linter"]),
    ],
)
def test_generated_pages_say_what_the_code_says(site, page, said):
    text = re.sub(r"<[^>]+>", "", (site / page).read_text(encoding="utf-8"))
    text = re.sub(r"\s+", " ", text)
    assert [one for one in said if one not in text] == []


@pytest.mark.parametrize("name", ["plan_a_sweep", "compare_runs"])
@pytest.mark.timeout(1200)
def test_a_notebook_runs_from_its_first_cell_to_its_last(name, checkout, python, tmp_path):
    bins = [str(checkout / ".venv" / "bin"), str(checkout / ".docs" / "bin")]
    variables = {
        **os.environ,
        "PATH": os.pathsep.join([*bins, os.environ["PATH"]]),
        "CROSSMESH_STORAGE": str(tmp_path / "storage"),
        "JUPYTER_PATH": str(checkout / ".docs" / "share" / "jupyter"),
    }
    script = (
        "import sys, nbformat, nbclient\n"
        "notebook = nbformat.read(sys.argv[1], as_version=4)\n"
        "nbclient.NotebookClient(notebook, timeout=900, kernel_name='python3').execute()\n"
    )
    command = [python, "-c", script, checkout / "docs" / "notebooks" / f"{name}.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
