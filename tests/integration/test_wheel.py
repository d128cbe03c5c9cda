"""The package as it is installed: a wheel with its config groups plans from an empty folder, in an environment without the checkout.

Nothing is fetched: setuptools and all dependencies are those of the environment that runs the tests, which the new one sees through a
`.pth` file; editable installs do not come with it.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from crossmesh import __version__

pytestmark = [pytest.mark.integration, pytest.mark.full]
UV = str(Path(sys.executable).with_name("uv"))


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    for name in ("platform", "conf"):
        shutil.copytree(checkout / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(checkout / name, source)
    # Without --wheel: from the source distribution, which has to be complete too.
    command = [UV, "build", "--offline", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(source / "dist"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of programs of an environment that has the wheel."""
    root = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True, timeout=120)
    python = str(root / "bin" / "python")
    subprocess.run([UV, "pip", "install", "--offline", "--no-deps", "--quiet", "--python", python, str(wheel)], check=True, timeout=120)
    (packages,) = (root / "lib").glob("python3*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return root / "bin"


def test_the_wheel_has_every_file_of_conf_and_of_the_package(checkout, wheel):
    assert wheel.name.startswith(f"crossmesh-{__version__}-")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    conf = {f"crossmesh/conf/{file.relative_to(checkout / 'conf')}" for file in (checkout / "conf").rglob("*") if file.is_file()}
    tracked = subprocess.run(["git", "ls-files", "platform"], cwd=checkout, capture_output=True, text=True, check=True).stdout.split()
    assert conf - names == set()
    assert {name.removeprefix("platform/") for name in tracked} - names == set()


def test_the_installed_command_plans_from_an_empty_folder(installed, clean_environment, tmp_path):
    command = [str(installed / "crossmesh"), "plan", "experiment=gemma4_31b_codev_v5p8_tp4", "output=json"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment, cwd=tmp_path, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said
    where = "import crossmesh, crossmesh.installation as i; print(crossmesh.__file__); print(i.checkout(), i.conf_folder())"
    shown = subprocess.run(
        [str(installed / "python"), "-c", where], capture_output=True, text=True, cwd=tmp_path, check=True, timeout=60
    ).stdout
    assert shown.startswith(str(installed.parent))
    assert f"None {installed.parent}" in shown
