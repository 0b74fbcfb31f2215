"""A trial as Tune runs it. Alone in its module: every trial process imports it, and nothing heavy with it."""

from __future__ import annotations

from typing import Any

import ray
from ray import tune


class ServiceTrial(tune.Trainable):  # type: ignore[misc]
    """One setting: asks the service, reports what it answers, and is done."""

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
