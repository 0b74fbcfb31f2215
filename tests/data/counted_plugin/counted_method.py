"""A post-processor from outside the package that writes down each time it is fitted."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from oscbench.metrics import Predictions
from oscbench.postprocessors.base import POSTPROCESSORS, finite_logits, require_fitted, require_width


@dataclass(frozen=True, kw_only=True)
class CountedParams:
    tail_size: int = 1
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.tail_size < 1:
            raise ValueError(f"tail_size must be at least 1, got {self.tail_size}")


@POSTPROCESSORS.register(
    "counted", params=CountedParams, label="Counted", needs={"logits"}, score_kinds=("log",), per_class=False
)
class Counted:
    notes = ()

    def __init__(self, params: CountedParams, score_kind: str = "log") -> None:
        self.params = params
        self.score_kind = score_kind
        self.width: int | None = None

    def fit(self, train: Any) -> Self:
        with open(os.environ["COUNTED_LOG"], "a") as log:  # one write, in append mode: whole lines from any process
            log.write(f"{self.params.tail_size} {self.params.shift}\n")
        began = time.monotonic()
        while time.monotonic() - began < float(Path(os.environ["COUNTED_LOG"] + ".seconds").read_text()):
            time.sleep(0.01)  # and read again: a test may hold a search and let it go
        if self.params.tail_size == 13:
            raise RuntimeError("thirteen is refused")
        self.width = finite_logits(train, "Counted").shape[1]
        return self

    def predict(self, inputs: Any) -> Predictions:
        width = require_fitted(self.width, "Counted")
        logits = np.asarray(require_width(finite_logits(inputs, "Counted"), width, "logits"), np.float64)
        logits = logits[:, : inputs.n_known]
        scores = logits / (self.params.tail_size + np.abs(logits)) + self.params.shift * np.sin(logits)
        return Predictions(scores.argmax(axis=1).astype(np.int32), scores.max(axis=1))
