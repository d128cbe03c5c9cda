"""What pyproject.toml cannot say: `conf/`, which stands at the top of the source, is data of the package in a wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    """Copy `conf/` into the package that is built; an editable install has it where it stands."""

    def run(self) -> None:
        """Build the package, then its config groups."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "crossmesh" / "conf"
            shutil.rmtree(target, ignore_errors=True)  # A build folder that is used again may have files that `conf/` no longer has.
            shutil.copytree(Path(__file__).parent / "conf", target)


setup(cmdclass={"build_py": BuildWithConf})
