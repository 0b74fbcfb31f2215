"""Results that several tests read: one seed of p1, whose figures get intervals, and two of p2, which get deviations."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs_factory import make_runs

from oscbench.report.measures import Measures
from oscbench.report.results import Results, read_results

ALGORITHMS = ("mss", "openmax", "evm", "proser")


@pytest.fixture(scope="session")
def drawn_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder; to be read only."""
    runs = tmp_path_factory.mktemp("drawn") / "runs"
    trainings = ("softmax", "garbage")
    make_runs(runs, protocols=("p1",), trainings=trainings, algorithms=ALGORITHMS)
    return make_runs(runs, protocols=("p2",), trainings=trainings, algorithms=ALGORITHMS[:3], seeds=(0, 1))


@pytest.fixture(scope="session")
def drawn(drawn_runs: Path) -> Results:
    """What lies in it."""
    return read_results(drawn_runs)


@pytest.fixture(scope="session")
def measures(drawn: Results) -> Measures:
    """Its figures."""
    return Measures.of(drawn)
