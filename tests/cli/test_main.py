"""What every command shares: exit codes, one-line errors, help that answers at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

import oscbench.cli
from oscbench.errors import OscbenchError, StoppedError, UsageError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "oscbench", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tuen"], "No such command 'tuen'"),
        (["doctor", "--jsn"], "No such option"),
        (["protocol", "show", "9"], "'9'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], message: str):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_version_and_help_go_to_stdout():
    assert run("--version").stdout == f"oscbench {oscbench.__version__}\n"
    shown = run("--help")
    assert shown.returncode == 0
    for verb in oscbench.cli.VERBS:
        assert f" {verb} " in shown.stdout


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Makes the command line raise whatever is wanted."""

    def fail_with(error: BaseException) -> None:
        def command(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(oscbench.cli, "app", command)

    return fail_with


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("bad\nvalue"), 2, "error: bad value\n"),
        (OscbenchError("disk full"), 1, "error: disk full\n"),
        (RuntimeError("oops"), 1, "error: RuntimeError: oops (run again with --debug for the traceback)\n"),
        (StoppedError("interrupted, 3 of 4 are kept"), 130, "interrupted, 3 of 4 are kept\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Abort(), 130, "interrupted\n"),
    ],
)
def test_each_way_to_end_has_its_exit_code(failing, capsys, error: BaseException, code: int, line: str):
    failing(error)
    with pytest.raises(SystemExit) as ended:
        oscbench.cli.main(["anything"])
    assert ended.value.code == code
    assert capsys.readouterr().err == line


def test_debug_shows_the_traceback_anywhere_on_the_line(failing, capsys):
    failing(UsageError("bad"))
    with pytest.raises(SystemExit):
        oscbench.cli.main(["evaluate", "--debug"])
    assert "Traceback" in capsys.readouterr().err
