"""Runs ``oscbench benchmark`` on a small protocol of embedded data in processes of its own, and counts what is made."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from oscbench.artifacts import is_complete
from oscbench.protocols.base import make_protocol, write_protocol
from oscbench.tuning.trials import read_trials

COUNTING = Path(__file__).parent / "data" / "counted_epochs"
KNOWN = ("n02085620", "n02088364", "n02123045", "n01531178")
NEGATIVE = ("n02114367", "n02119022")
UNKNOWN = ("n02666196", "n07745940")
VOLATILE = ["seconds", "finished_at"]
"""Columns in which two runs of one search may differ."""


class BenchmarkRuns:
    """One runs folder with its logs of epochs and stages.

    Args:
        folder: Where all of it lies.
        *options: Of the command.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.options = folder, options
        self.log = folder / "stages.log"
        self.log.touch()
        roles = {"known": KNOWN, "negative": NEGATIVE, "unknown": UNKNOWN}
        named = {role: {wnid: wnid for wnid in wnids} for role, wnids in roles.items()}
        write_protocol(folder / "small.yaml", make_protocol("small", named, "test"))

    def start(self) -> subprocess.Popen[str]:
        """Starts the command and returns at once; it leads a session of its own."""
        path = os.pathsep.join([str(COUNTING), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-m", "oscbench", "benchmark", "--protocols", "small.yaml", "--json", *self.options]
        logs = {"COUNTED_STAGES": str(self.log), "COUNTED_EPOCHS": str(self.folder / "epochs.log")}
        return subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"} | logs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            start_new_session=True,
        )

    def finish(self) -> list[dict[str, Any]]:
        """Runs it to its end, which must be a good one; the cells without what differs from run to run."""
        process = self.start()
        out, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors
        return cells_of(out)

    def finished(self) -> set[str]:
        """Folders of the finished stages."""
        return {path.name for path in (self.folder / "runs").glob("*/small/*-*") if is_complete(path)}

    def made(self) -> collections.Counter[str]:
        """How often each stage was begun in earnest, in whatever process."""
        return collections.Counter(self.log.read_text().split())

    def epochs(self) -> collections.Counter[str]:
        """How often each epoch of each network was trained to its end."""
        path = self.folder / "epochs.log"
        return collections.Counter(path.read_text().splitlines() if path.exists() else [])

    def trials(self) -> pd.DataFrame:
        """Every trial of every search, in an order that does not depend on time."""
        paths = sorted((self.folder / "runs").glob("*/small/tune-*/trials.csv"))
        tables = [read_trials(path).drop(columns=VOLATILE) for path in paths]
        return pd.concat(tables).sort_values(["run_id", "trial_id"], ignore_index=True)


def cells_of(out: str) -> list[dict[str, Any]]:
    """The cells of the command's document."""
    return list(json.loads(out)["cells"])
