"""A small evaluator that trains: several steps per trial, a checkpoint after each, every step written down."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oscbench.resources import Resources
from oscbench.tuning.evaluator import Outcome, TrialContext
from oscbench.tuning.space import Setting
from oscbench.tuning.trials import RATES

STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """Takes ``STEPS`` steps for each setting, which it knows by its tail size.

    Attributes:
        log: Receives a line for each thing that happens.
        most: Trials at once, whatever the room.
        kills: Settings whose process ends itself with SIGKILL in the middle of the first attempt.
        refuses: Settings that raise.
        lingers: Seconds that an attempt takes at least, so that attempts that may overlap do.
        longest: Whether settings that are worse than others may be stopped early; then ``STEPS``.
    """

    log: Path
    cpus: float = 1.0
    gpus: float = 0.0
    most: int = 99
    keeps_folders: bool = False
    kills: tuple[int, ...] = ()
    refuses: tuple[int, ...] = ()
    lingers: float = 0.0
    longest: int | None = None

    def concurrency(self, left: int, have: Resources) -> int:
        return min(self.most, int(have.cpus // self.cpus), left)

    def clean_up(self) -> None:
        self.note("cleaned up")

    def evaluate(self, setting: Setting, trial: TrialContext) -> Outcome:
        name = setting["tail_size"]
        self.note("begun", trial=name, attempt=trial.earlier_attempts)
        time.sleep(self.lingers)
        self.note("lingered", trial=name, attempt=trial.earlier_attempts)
        if name in self.refuses:
            raise RuntimeError(f"{name}\nis refused")
        checkpoint = trial.folder / "step"
        for step in range(int(checkpoint.read_text()) if checkpoint.exists() else 0, STEPS):
            if name in self.kills and step == STEPS // 2 and trial.earlier_attempts == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.note("step", trial=name, attempt=trial.earlier_attempts, step=step)
            (trial.folder / "new").write_text(str(step + 1))
            (trial.folder / "new").replace(checkpoint)
            trial.report(step + 1, dict.fromkeys(RATES, name / 100) | {"loss": 1.0 / (step + 1)})
        self.note("ended", trial=name, attempt=trial.earlier_attempts)
        return {rate: name / 100 for rate in RATES}

    def note(self, what: str, **details: Any) -> None:
        line = json.dumps({"what": what, "at": time.monotonic(), **details})
        with self.log.open("a") as file:  # one write, in append mode: whole lines from any process
            file.write(line + "\n")

    def notes(self, what: str) -> list[dict[str, Any]]:
        """Everything of one kind that happened, in order."""
        lines = map(json.loads, self.log.read_text().splitlines())
        return [line for line in lines if line["what"] == what]

    def steps(self) -> dict[int, list[int]]:
        """The steps each setting has taken, in all attempts."""
        found: dict[int, list[int]] = {}
        for line in self.notes("step"):
            found.setdefault(line["trial"], []).append(line["step"])
        return found

    def most_at_once(self) -> int:
        """The largest number of attempts that were between their first and their last line at the same moment."""
        attempts: dict[tuple[int, int], list[float]] = {}
        for line in map(json.loads, self.log.read_text().splitlines()):
            if "trial" in line:
                attempts.setdefault((line["trial"], line["attempt"]), []).append(line["at"])
        spans = [(min(times), max(times)) for times in attempts.values()]
        return max(sum(first <= moment <= last for first, last in spans) for moment, _ in spans)


def fallen_behind(values: Sequence[float]) -> list[int | None]:
    """After which step each of these trials, run one after the other, is stopped early; ``None``: never.

    They are compared after the first and the third of four steps with those that came as far.
    """
    rungs: dict[int, list[float]] = {1: [], 3: []}
    found: list[int | None] = []
    for value in values:
        found.append(None)
        for step, earlier in rungs.items():
            stops = bool(earlier) and value < np.percentile(earlier, 100 * 2 / 3)
            earlier.append(value)
            if stops:
                found[-1] = step
                break
    return found
