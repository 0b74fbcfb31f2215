"""The ``oscbench`` command: one module per verb, imported without torch or ray so that ``--help`` is instant."""

from __future__ import annotations

import logging
import sys
import traceback
from importlib import import_module

import typer

from oscbench import __version__
from oscbench.errors import StoppedError

VERBS = (
    "protocol",
    "data",
    "methods",
    "train",
    "extract",
    "tune",
    "benchmark",
    "watch",
    "evaluate",
    "threshold",
    "export",
    "report",
    "doctor",
)
"""Modules of this package in the order of the help page; each has ``register(app)``."""

app = typer.Typer(
    name="oscbench",
    help="Tune and compare open-set classifiers: protocols, trainings, post-processors and CCR@FPR.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"oscbench {__version__}")
        raise typer.Exit


@app.callback(epilog="Any verb takes --debug, which shows the traceback of an error.")
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


for _verb in VERBS:
    import_module(f"oscbench.cli.{_verb}").register(app)


def main(arguments: list[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 1 failure, 2 wrong use, 130 Ctrl-C; an error is one line on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    sys.exit(_run(arguments, debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        code = app(arguments, standalone_mode=False)
        if code == StoppedError.exit_code:  # the option parser's answer to Ctrl-C
            raise StoppedError("interrupted")
    except (StoppedError, KeyboardInterrupt, typer.Abort) as error:
        print(str(error) or "interrupted", file=sys.stderr)
        return StoppedError.exit_code
    except BrokenPipeError:  # `oscbench … | head`
        sys.stderr.close()
        return 1
    except Exception as error:  # noqa: BLE001 - the last resort of every command: one line instead of a traceback
        if debug:
            traceback.print_exc()
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return code if isinstance(code, int) else 0


def _one_line(error: Exception) -> str:
    """The message of an error of ours or of the option parser; anything unforeseen also names its type."""
    if hasattr(error, "format_message"):  # the option parser's own errors
        text = error.format_message()
    elif hasattr(error, "exit_code"):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error} (run again with --debug for the traceback)"
    return " ".join(text.split())
