"""Runs ``oscbench tune`` in processes of its own, with the counting plug-in in reach, and reads what they left."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from feature_factory import write_feature_folder

from oscbench.tuning.trials import read_trials

PLUGIN = Path(__file__).parent / "data" / "counted_plugin"
VOLATILE = ["seconds", "finished_at"]
"""Columns in which two runs of one search may differ."""


class TuneRuns:
    """One runs folder, one feature folder and the log of the counting plug-in.

    Args:
        folder: Where all of it lies.
        features: Feature folder to share with others; default: one of its own.
        log: Log of the plug-in; workers of a running cluster write to the one they were started with.
        seconds: How long the plug-in takes for a fit.
        **environment: For the processes.
    """

    def __init__(
        self,
        folder: Path,
        features: Path | None = None,
        log: Path | None = None,
        seconds: float = 0.0,
        **environment: str,
    ) -> None:
        self.runs = folder / "runs"
        self.log = log or folder / "counted.log"
        folder.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        self.pace(seconds)
        self.features = features or write_feature_folder(folder / "features")
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PLUGIN), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "RAY_USAGE_STATS_ENABLED": "0",
            **environment,
            "COUNTED_LOG": str(self.log),
        }

    def pace(self, seconds: float) -> None:
        """How long the plug-in takes for a fit from now on, those that run included."""
        new = Path(f"{self.log}.seconds.new")
        new.write_text(str(seconds))
        new.replace(f"{self.log}.seconds")  # never seen half-written

    def command(self, *arguments: str, algorithm: str = "counted") -> list[str]:
        """The command line of a search on these features."""
        own = ["--space", str(PLUGIN / "counted.yaml")] if algorithm == "counted" else []
        base = [sys.executable, "-m", "oscbench", "tune", "--alg", algorithm, "--features", str(self.features)]
        return [*base, "--runs", str(self.runs), *own, *arguments]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a search and returns at once; it leads a session of its own."""
        return subprocess.Popen(
            self.command(*arguments, **options),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a search to its end."""
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def result(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """The JSON document of a search that must succeed."""
        done = self.run(*arguments, "--json", **options)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def folder(self) -> Path:
        """The folder of the only search."""
        (folder,) = self.runs.glob("*/*/tune-*")
        return folder

    def finished(self) -> set[tuple[str, str]]:
        """The settings whose line stands in the journal, as the plug-in names them."""
        paths = list(self.runs.glob("*/*/tune-*/trials.csv"))
        if not paths:
            return set()
        table = read_trials(paths[0])
        done = table[table["status"] == "done"]
        return {(str(tail), str(shift)) for tail, shift in zip(done["tail_size"], done["shift"], strict=True)}

    def fits(self) -> collections.Counter[tuple[str, str]]:
        """How often the plug-in was fitted with each setting."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return collections.Counter((line.split()[0], line.split()[1]) for line in lines)

    def table(self) -> pd.DataFrame:
        """The finished table in an order that does not depend on time."""
        table = read_trials(self.folder() / "trials.csv")
        return table.drop(columns=VOLATILE).sort_values("trial_id", ignore_index=True)
