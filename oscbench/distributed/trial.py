"""Trials as Tune runs them. Alone in their module: every trial process imports it, and nothing heavy with it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

if TYPE_CHECKING:
    from oscbench.tuning.evaluator import TrialEvaluator


class ServiceTrial(tune.Trainable):  # type: ignore[misc]
    """One setting on shared features: asks the service, reports what it answers, and is done."""

    def setup(self, config: dict[str, Any], service: Any, features: dict[str, Any]) -> None:
        """Remembers whom to ask, and about which features (references, not arrays)."""
        self._service = service
        self._features = features

    def step(self) -> dict[str, Any]:
        """The outcome of the setting."""
        outcome: dict[str, Any] = ray.get(self._service.evaluate.remote(self.config["setting"], self._features))
        return outcome | {"done": True}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The same process takes the next setting: starting one costs ten times as much as asking."""
        self.config = new_config
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to keep: a trial is one question."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing to take up again."""


def training_trial(config: dict[str, Any], evaluator: TrialEvaluator, folders: Path) -> None:
    """One setting that is trained in this process, from its last checkpoint where there is one.

    The last report says ``done``, so that Tune does not run the trial again when its process dies just after it.
    """
    from oscbench.progress import collected_log
    from oscbench.tuning.evaluator import run_trial
    from oscbench.tuning.trials import trial_id

    setting = config["setting"]

    def report(step: int, values: Any) -> None:
        # The sum once more by itself: a scheduler sees the figures under other names, flattened.
        tune.report({"step": step, "values": dict(values), "sum": values["sum"]})

    with collected_log(logging.WARNING) as warnings:
        outcome = run_trial(evaluator, setting, folders / trial_id(setting), report)
    tune.report(outcome | {"warnings": tuple(warnings), "done": True})
