"""A real Chromium driven over the DevTools protocol through a pipe: no port, no package, no waiting by the clock."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import LONGEST_WAIT

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Page:
    """One tab.

    Attributes:
        problems: Errors that its console, its scripts or its policy reported.
        requests: Addresses of everything it asked for.
    """

    def __init__(self, sent: int, received: int) -> None:
        self._sent, self._received = os.fdopen(sent, "wb"), os.fdopen(received, "rb")
        self._answers = select.poll()  # unlike select, for a process with any number of open files
        self._answers.register(self._received, select.POLLIN | select.POLLHUP)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's answer; events that arrive before it are kept."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._sent.write(json.dumps(message).encode() + b"\0")
        self._sent.flush()
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._take(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert self._answers.poll(LONGEST_WAIT * 1000), f"the browser has said nothing for {LONGEST_WAIT:.0f} s"
            more = os.read(self._received.fileno(), 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _take(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        method, given = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(given["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.problems.append(str(given["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])

    def wait_for(self, method: str) -> dict[str, Any]:
        """The next event of that name since the last one waited for."""
        while True:
            for place, event in enumerate(self._events):
                if event.get("method") == method:
                    del self._events[: place + 1]
                    return event["params"]
            self._take(self._next())

    def open(self, path: Path) -> None:
        """Shows a file, and comes back when its scripts are through."""
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")
        assert self.run("document.documentElement.dataset.ready") == "true", self.problems

    def run(self, code: str) -> Any:
        """The value of an expression in the page, a promise's when it is kept."""
        done = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, f"{code}: {done['exceptionDetails']}"
        return done["result"].get("value")

    def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Sets the window's size, and what the system prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def mouse(self, kind: str, x: float, y: float, *, held: bool = False) -> None:
        """A real move, press or release of the pointer."""
        given = {"button": "left", "buttons": 1, "clickCount": 1} if held or kind != "mouseMoved" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **given)

    def key(self, key: str) -> None:
        """A key, pressed and let go."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A picture of the window, or of all of the page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def print(self, path: Path) -> None:
        """The page as it would be printed."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def close(self) -> None:
        """Ends the browser; it answers by closing the pipe."""
        self._session = None
        self._sent.write(json.dumps({"id": next(self._numbers), "method": "Browser.close"}).encode() + b"\0")
        self._sent.flush()
        while os.read(self._received.fileno(), 1 << 20):
            pass


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A browser with one tab, which ends with the block."""
    browser = shutil.which("chromium") or pytest.fail("chromium is not installed (apt-get install chromium)")
    to_read, to_send = os.pipe()
    received, written = os.pipe()
    command = f'exec "$0" "$@" 3<&{to_read} 4>&{written}'
    process = subprocess.Popen(
        ["bash", "-c", command, str(browser), *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(to_read, written),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(written)
    page = Page(to_send, received)
    try:
        yield page
        page.close()
        process.wait(timeout=LONGEST_WAIT)
    finally:
        process.kill()
        process.wait()
