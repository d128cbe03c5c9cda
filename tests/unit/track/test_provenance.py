import subprocess
import sys

import pytest

from crossmesh.track.provenance import environment_text, gather_provenance, git_state, library_versions


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    source = tmp_path / "package" / "module.py"
    source.parent.mkdir()
    source.write_text("one = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return source


def test_a_clean_tree_has_its_commit_and_no_diff(repository):
    state = git_state(repository)
    assert state.sha == git(repository.parent, "rev-parse", "HEAD")
    assert (state.diff, state.dirty) == ("", False)


def test_changes_and_unknown_sources_make_it_dirty(repository, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "super-secret-1")
    repository.write_text("key = 'super-secret-1'\n")
    (repository.parent / "new.py").write_text("")
    (repository.parent / "notes.txt").write_text("")
    state = git_state(repository)
    assert state.dirty
    assert "+key = '***'" in state.diff
    assert state.untracked == ("package/new.py",)


def test_staged_changes_count_too(repository):
    repository.write_text("one = 2\n")
    git(repository.parent, "add", "module.py")
    assert "+one = 2" in git_state(repository).diff


def test_a_package_that_git_does_not_track_has_no_commit(repository, tmp_path):
    """An installation inside the ignored `.venv` of some repository must not claim that repository's commit."""
    installed = tmp_path / "package" / "installed.py"
    installed.write_text("")
    assert git_state(installed) is None


def test_versions_name_only_what_is_installed():
    assert library_versions(("no-such-distribution-xyz",)) == {}
    assert library_versions(("mlflow",))["mlflow"] == "3.17.2"
    assert "mlflow==3.17.2\n" in environment_text()


def test_gathering_imports_no_framework():
    before = set(sys.modules)
    record = gather_provenance().record()
    assert not {"torch", "jax", "vllm", "transformers"} & (set(sys.modules) - before)
    assert record["libraries"]["ray"] == "2.60.0"
    assert record["host"]["cpus"] > 0
