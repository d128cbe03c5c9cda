"""A disk that is really full while a checkpoint is written: what is stored stays, the message says what to do, and the run goes on later.

The disk is a small tmpfs, mounted where nobody else sees it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SCRIPT = """
import sys
from pathlib import Path
from crossmesh.errors import CrossmeshError
from quadratic import Training, curve, names

disk, whole = Path(sys.argv[1]), Training(Path(sys.argv[2]) / "whole").run()
Training(disk / "run", stop_after=5).run()
ballast = disk / "ballast"

def fill():
    try:
        with ballast.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 512)
    except OSError:
        pass

try:
    Training(disk / "run", saving=fill).run()
except CrossmeshError as error:
    print(error)
print([name for name in names(disk / "run") if not name.startswith(".")])
ballast.unlink()
result = Training(disk / "run").run()
print([event.step for event in result.history if event.first], curve(result) == curve(whole))
"""


def test_a_full_disk_loses_nothing_that_is_stored(checkout: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = f"mount -t tmpfs -o size=512k tmpfs {disk} && exec {sys.executable} -c '{SCRIPT}' {disk} {tmp_path}"
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk (unshare)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout / "platform"), str(checkout / "tests" / "support")])}
    done = subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, env=environment, check=True)
    message, kept, end = done.stdout.splitlines()
    assert message.startswith("The checkpoint after step 10 could not be stored")
    assert "No space left on device" in message
    assert "Make room under storage.root" in message
    assert kept == "['step-00000005']"
    assert end == "[1, 6] True"
