"""Fixtures and rules of the whole suite."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before ray is imported anywhere: no usage report leaves the machine, and a worker's log stays out of the test output.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's workers would otherwise run at niceness 15 and starve beside anything else that the machine does.
os.environ.setdefault("RAY_worker_niceness", "0")

# A suite started in the background of a script inherits a Ctrl-C that is ignored, and so would the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine may make any example slow, so none has a deadline. CI draws the same examples every time; elsewhere
# a failure prints what repeats it.
settings.register_profile("oscbench", deadline=None, print_blob=True, derandomize=os.environ.get("CI") == "true")
settings.load_profile("oscbench")

ALLOWED_SKIPS = Path(__file__).parent / "allowed_skips.txt"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test counts as failed unless its reason stands in allowed_skips.txt."""
    allowed = {
        line.strip() for line in ALLOWED_SKIPS.read_text().splitlines() if line.strip() and not line.startswith("#")
    }
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    reasons = {str(report.longrepr[2]).removeprefix("Skipped: ") for report in reporter.stats.get("skipped", [])}
    refused = sorted(reasons - allowed)
    if refused:
        reporter.write_line(f"skipped for reasons not in {ALLOWED_SKIPS.name}: {'; '.join(refused)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray for all tests that need one: starting it takes 6 to 8 seconds."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
