"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oscbench.cli import main


@pytest.fixture(scope="session")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one user types all the commands of README and help pages, so that stages are made once."""
    return tmp_path_factory.mktemp("user")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str, str]]:
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run
