"""What the project says of itself in several places is said alike: version, changes, targets that CI calls, hooks."""

import re

import crossmesh


def test_the_version_stands_in_the_package_alone_and_the_changelog_has_a_section_for_it(checkout):
    project = (checkout / "pyproject.toml").read_text()
    assert 'version = { attr = "crossmesh.__version__" }' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)
    sections = re.findall(r"^## (.*)$", (checkout / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0].startswith(f"[{crossmesh.__version__}] - ")
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - (Unreleased|\d{4}-\d\d-\d\d)", section) for section in sections)


def test_workflows_call_targets_that_the_makefile_has(checkout):
    targets = set(re.findall(r"^([a-z-]+):", (checkout / "Makefile").read_text(), re.MULTILINE))
    called = set()
    for file in (checkout / ".github" / "workflows").glob("*.yml"):
        called |= set(re.findall(r"run: make ([a-z-]+)", file.read_text()))
    assert {"check", "test", "docs", "test-full"} <= called
    assert called <= targets


def test_every_page_of_the_documentation_is_in_its_navigation(checkout):
    navigation = (checkout / "mkdocs.yml").read_text()
    pages = [file.relative_to(checkout / "docs").as_posix() for file in (checkout / "docs").rglob("*.md")]
    assert len(pages) > 20
    assert [page for page in pages if not page.startswith("decisions/") and f": {page}" not in navigation] == []
    listed = (checkout / "docs" / "decisions" / "index.md").read_text()
    assert [
        file.name for file in (checkout / "docs" / "decisions").glob("*.md") if file.stem != "index" and f"({file.name})" not in listed
    ] == []
