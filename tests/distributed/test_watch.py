"""``oscbench watch`` beside a running search, seen with a real browser."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tune_runs import TuneRuns

pytestmark = [pytest.mark.ray]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--virtual-time-budget=12000",
]
HELD = 600.0
"""Seconds for a fit that waits until the test lets it go."""


def browse(url: str, profile: Path, *options: str) -> str:
    """What Chromium makes of a page after its scripts have run."""
    browser = shutil.which("chromium") or pytest.fail("chromium is not installed (apt-get install chromium)")
    command = [str(browser), *FLAGS, f"--user-data-dir={profile}", *options, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=True).stdout


def trials_on(page: str, profile: Path) -> int:
    """How many trials the list of the first study shows; the window is tall enough for all of them."""
    dom = browse(f"{page}studies/0/trials", profile, "--window-size=1400,6000", "--dump-dom")
    return len(set(re.findall(r">Trial (\d+)<", dom)))


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[tuple[TuneRuns, str, int]]:
    runs = TuneRuns(tmp_path, seconds=0.5)
    runs.runs.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "oscbench", "watch", "--runs", str(runs.runs), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        page = process.stdout.readline().split()[0]
        yield runs, page, process.pid
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=900)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
    finally:
        process.kill()


@pytest.mark.slow
def test_the_page_follows_a_running_search(watch: tuple[TuneRuns, str, int], tmp_path: Path) -> None:
    runs, page, _ = watch
    search = runs.start()
    try:
        _wait_until_finished(runs, 2, search)
        runs.pace(HELD)  # a browser may take longer than what is left of the search
        first = trials_on(page, tmp_path / "profile")
        assert first >= 2
        runs.pace(0.5)
        _wait_until_finished(runs, first + 2, search)
        runs.pace(HELD)
        second = trials_on(page, tmp_path / "profile")
        assert first < second <= 24
        assert search.poll() is None
    finally:
        runs.pace(0.0)
        out, errors = search.communicate(timeout=900)
    assert search.returncode == 0, errors
    time.sleep(2)  # the page's next look at the files
    assert trials_on(page, tmp_path / "profile") == 24
    picture = tmp_path / "watch.png"
    browse(f"{page}studies/0", tmp_path / "profile", "--window-size=1400,1000", f"--screenshot={picture}")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000  # an empty page has a tenth of that


def _wait_until_finished(runs: TuneRuns, count: int, search: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while len(runs.finished()) < count:
        assert search.poll() is None, search.stderr.read() if search.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_loopback_only_and_read_only(watch: tuple[TuneRuns, str, int]) -> None:
    runs, page, pid = watch
    port = int(page.split(":")[2].split("/")[0])
    assert page.startswith("http://127.0.0.1:")
    assert _listening_addresses(port) == {"0100007F"}  # 127.0.0.1, as the kernel writes it
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies") as answer:
        assert answer.status == 200
    assert list(runs.runs.iterdir()) == []


SWALLOWING = """
import sys, time
import oscbench.cli.watch as verb
from oscbench.cli import main

class Swallowing:
    server_port = 1

    def serve_forever(self):
        while True:
            try:
                time.sleep(0.01)
            except KeyboardInterrupt:
                pass

    def shutdown(self):
        pass

    server_close = shutdown

verb._serve = lambda mirror, port: Swallowing()
main(["watch", "--runs", sys.argv[1]])
"""


def test_ctrl_c_ends_it_in_the_midst_of_a_request(tmp_path: Path) -> None:
    """A real server swallows the signal if it strikes while a request's thread is being started; this one always."""
    process = subprocess.Popen([sys.executable, "-c", SWALLOWING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:1/")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=900) == 130
    finally:
        process.kill()


def _listening_addresses(port: int) -> set[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


def test_a_busy_port_and_a_missing_folder_are_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = _watch("--runs", str(tmp_path), "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: cannot listen on 127.0.0.1:{port}")
    done = _watch("--runs", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "none does not exist" in done.stderr


def _watch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oscbench", "watch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
