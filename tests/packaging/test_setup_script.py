"""``scripts/setup.sh``: nothing to do the second time, and a clear line where only an administrator can help."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup.sh"


def test_a_second_run_installs_nothing():
    done = subprocess.run([SETUP, "--browser"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "oscbench is ready: .venv/bin/oscbench\n"


def test_an_unknown_option_is_wrong_use():
    done = subprocess.run([SETUP, "--no-fcv"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown option --no-fcv" in done.stderr


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a user without rights can read, with the script in it."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "scripts").mkdir()
    shutil.copy(SETUP, folder / "scripts")
    (folder / "pyproject.toml").touch()
    (folder / "no-packages").mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("options", "packages"),
    [
        ([], "wordnet-base wordnet-sense-index libopencv-dev libturbojpeg0-dev pkg-config g++"),
        (["--no-ffcv"], "wordnet-base wordnet-sense-index"),
    ],
)
def test_without_rights_the_line_for_the_administrator_is_printed(open_folder: Path, options: list[str], packages: str):
    # A package database with nothing in it, seen by a user who is not root and has no sudo on the path.
    (open_folder / "bin").mkdir()
    for tool in ("bash", "dirname", "python3", "dpkg-query", "grep", "id", "env"):
        (open_folder / "bin" / tool).symlink_to(shutil.which(tool, path="/usr/bin:/bin"))
    environment = {"PATH": str(open_folder / "bin"), "DPKG_ADMINDIR": str(open_folder / "no-packages")}
    nobody = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    script = open_folder / "scripts" / "setup.sh"
    done = subprocess.run([*nobody, script, *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1].strip()
    assert line.startswith(f"apt-get update && apt-get install -y {packages}")
    assert not (open_folder / ".venv").exists()
