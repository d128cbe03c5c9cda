"""MLflow is named in `track/mlflow/`, in the keys of the config and in `jobs/ui.py`, which is its UI; elsewhere for a reason."""

from pathlib import Path

import crossmesh

PACKAGE = Path(crossmesh.__file__).parent
ROOMS = ("track/mlflow/", "config/", "jobs/ui.py")

DEPENDENCY, STORE, RECORDED, MESSAGE = (
    "names the library: its version, its variables, its presence",
    "looks at MLflow's own store or processes",
    "recorded in runs from before, which are still read",
    "a message that jobs with the default tracker print",
)
EXCEPTIONS = {
    "installation.py": DEPENDENCY,
    "compat/parts.py": DEPENDENCY,
    "environments.py": DEPENDENCY,
    "track/provenance.py": DEPENDENCY,
    "doctor/services.py": STORE,
    "doctor/listeners.py": STORE,
    "storage_check.py": STORE,
    "verify/unlike/store.py": STORE,
    "verify/compare_speed/sweep_store.py": STORE,
    "track/trackers.py": "the registry's name for it",
    "track/tracked_run.py": RECORDED,
    "track/system.py": RECORDED,
    "track/tracker.py": MESSAGE,
    "report/comparing.py": MESSAGE,
    "report/trained_run.py": MESSAGE,
    "report/gate/integrity.py": MESSAGE,
    "pipeline/evaluation_tables.py": MESSAGE,
    "adapters/sources.py": MESSAGE,
}


def named_in() -> set[str]:
    files = {file.relative_to(PACKAGE).as_posix(): file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
    return {name for name, text in files.items() if "mlflow" in text.lower() and not name.startswith(ROOMS)}


def test_mlflow_is_named_nowhere_else() -> None:
    assert named_in() == set(EXCEPTIONS)


def test_nothing_but_the_exceptions_imports_it() -> None:
    importing = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith(("import mlflow", "from mlflow", "from crossmesh.track.mlflow", "import crossmesh.track.mlflow"))
    }
    assert {name for name in importing if not name.startswith(ROOMS)} == {
        "doctor/services.py",
        "verify/unlike/store.py",
        "verify/compare_speed/sweep_store.py",
    }
