"""``oscbench watch``: a live page of running and finished searches."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oscbench.cli.common import RunsOption, examples
from oscbench.errors import OscbenchError, UsageError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from oscbench.tuning.study import StudyMirror

HOST = "127.0.0.1"
"""Loopback only: the page has no login."""

REFRESH_SECONDS = 1.0


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(epilog=examples("oscbench watch", "oscbench watch --runs runs --port 8090"))(watch)


def watch(
    runs: RunsOption = Path("runs"),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8080,
) -> None:
    """Show all searches below the runs folder in optuna-dashboard, live, until Ctrl-C.

    Run it beside `oscbench tune`, in another terminal; it listens on this machine alone and changes nothing.
    """
    from oscbench.tuning.study import StudyMirror

    if not runs.is_dir():
        raise UsageError(f"runs folder {runs} does not exist; give the --runs folder of the search")
    mirror = StudyMirror(runs)
    trials = mirror.refresh()
    server = _serve(mirror, port)
    stopped = threading.Event()
    follower = threading.Thread(target=_follow, args=(mirror, stopped), daemon=True)
    follower.start()
    print(f"http://{HOST}:{server.server_port}/dashboard/  ({trials} trials below {runs}; Ctrl-C ends)", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        stopped.wait()  # so that Ctrl-C strikes here: in the midst of a request the server would swallow it
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()


def _follow(mirror: StudyMirror, stopped: threading.Event) -> None:
    while not stopped.wait(REFRESH_SECONDS):
        mirror.refresh()


def _serve(mirror: StudyMirror, port: int) -> WSGIServer:
    """The dashboard's server, a thread per request so that a slow plot does not hold up the rest."""
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    from optuna_dashboard import wsgi

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    class QuietHandler(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        return make_server(HOST, port, wsgi(mirror.storage), Server, QuietHandler)
    except OSError as error:
        raise OscbenchError(
            f"cannot listen on {HOST}:{port} ({error.strerror}); give another --port, 0 for any"
        ) from error
