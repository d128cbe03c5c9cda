"""What the site has beside the pages of `docs/`: the generated reference, notebooks, pages of the root, and files that pages link to.

MkDocs calls the `on_...` functions. Pages are written to be read in the repository too, so a link may lead out of `docs/`: such a file
becomes a page below `source/`, and the site needs no network.
"""

import json
import os
import re
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")
_FETCHED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sbatch": "bash", ".sh": "bash", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every page that is not a file of `docs/`."""
    for path, text in _reference().items():
        files.append(File.generated(config, path, content=text))
    for path, name in ROOT_PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text(encoding="utf-8")))
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=_markdown(notebook)))
    written = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for target in sorted({target for path, text in written.items() for target in _outside(path, text)}):
        files.append(File.generated(config, _source_page(target), content=_source(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to the pages that stand for files outside of `docs/`."""
    path = page.file.src_uri
    return _LINK.sub(lambda link: _relinked(path, link[1]), markdown)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Refuse a page that would fetch something: the site has to work without a network."""
    if fetched := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch {fetched[1]} from the network. Put it below docs/assets, or turn it off.")
    return output


def _relinked(path: str, link: str) -> str:
    target = _target(path, link)
    pages = {name: page for page, name in ROOT_PAGES.items()}
    page = pages.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else _source_page(target))
    page = page.removesuffix(".ipynb") + ".md" if page.endswith(".ipynb") else page
    return os.path.relpath(page, str(PurePosixPath(path).parent)) if (ROOT / target).exists() else link


def _outside(path: str, text: str) -> list[str]:
    """Files and folders that a page links to and that are no pages themselves, from the checkout's root."""
    targets = [_target(path, link) for link in _LINK.findall(text)]
    return [
        target
        for target in targets
        if not target.startswith(("docs/", "../")) and target not in ROOT_PAGES.values() and (ROOT / target).exists()
    ]


def _target(path: str, link: str) -> str:
    folder = PurePosixPath() if path in ROOT_PAGES else PurePosixPath("docs", path).parent
    return os.path.normpath(str(folder / link))


def _source_page(target: str) -> str:
    return f"source/{target}.md"


def _source(file: Path) -> str:
    """A file as it is, or what a folder holds."""
    name = file.relative_to(ROOT).as_posix()
    if file.is_dir():
        return f"# {name}/\n\n" + "\n".join(f"- `{one.name}{'/' * one.is_dir()}`" for one in sorted(file.iterdir()) if one.name[0] != "_")
    return f"# {name}\n\n~~~~ {_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8').rstrip()}\n~~~~\n"


def _markdown(notebook: Path) -> str:
    """A notebook's cells, without outputs."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts)


def _reference() -> dict[str, str]:
    """The pages that `reference.py` makes, in the environment of jobs: this one has none of their packages."""
    python, script = ROOT / ".venv/bin/python", Path(__file__).with_name("reference.py")
    made = subprocess.run(
        [python, script], cwd=ROOT, env={**os.environ, "PYTHONPATH": "platform"}, capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise PluginError(f"The reference cannot be made (run `make install` first?): {made.stderr.strip()[-2000:]}")
    pages: dict[str, str] = json.loads(made.stdout)
    return pages
