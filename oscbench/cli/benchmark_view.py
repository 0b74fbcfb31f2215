"""What ``oscbench benchmark`` shows while it runs: one view on a terminal, lines in a log file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from oscbench.api.benchmark import LogBoard

if TYPE_CHECKING:
    from oscbench.stages.together import Board, Spectator

FAILURES_SHOWN = 8


def say(line: str) -> None:
    """One line of a log."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def open_board() -> Iterator[Spectator]:
    """One view that is drawn over and over on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield LogBoard(say)
        return
    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        yield _TerminalBoard(live)


class _TerminalBoard:
    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, board: Board) -> None:
        """See ``Spectator.show``."""
        self._live.update(_picture(board), refresh=True)


def _picture(board: Board) -> Group:
    done = len(board.done) + len(board.reused)
    lines = [Text(f"  {line}", style="cyan") for line in board.running_now()]
    failed = list(board.failed)
    lines += [Text(board.failure(path), style="red") for path in failed[:FAILURES_SHOWN]]
    if len(failed) > FAILURES_SHOWN:
        lines.append(Text(f"and {len(failed) - FAILURES_SHOWN} more", style="red"))
    return Group(Text(board.summary()), ProgressBar(total=board.total, completed=done, width=60), *lines)
