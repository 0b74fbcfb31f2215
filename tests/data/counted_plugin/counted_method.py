"""A post-processor from outside the package that writes down each time it is fitted."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from oscbench.postprocessors.base import POSTPROCESSORS


@dataclass(frozen=True, kw_only=True)
class CountedParams:
    tail_size: int = 1
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.tail_size < 1:
            raise ValueError(f"tail_size must be at least 1, got {self.tail_size}")


@POSTPROCESSORS.register("counted", params=CountedParams, label="Counted")
class Counted:
    score_kinds: ClassVar[tuple[str, ...]] = ("log",)

    def __init__(self, params: CountedParams, score_kind: str = "log") -> None:
        self.params = params
        self.score_kind = score_kind

    def fit(self, train: Any) -> Self:
        with open(os.environ["COUNTED_LOG"], "a") as log:  # one write, in append mode: whole lines from any process
            log.write(f"{self.params.tail_size} {self.params.shift}\n")
        began = time.monotonic()
        while time.monotonic() - began < float(Path(os.environ["COUNTED_LOG"] + ".seconds").read_text()):
            time.sleep(0.01)  # and read again: a test may hold a search and let it go
        if self.params.tail_size == 13:
            raise RuntimeError("thirteen is refused")
        return self

    def score(self, inputs: Any) -> Any:
        logits = np.asarray(inputs.logits[:, : inputs.n_known], np.float64)
        return np.tanh(logits / self.params.tail_size) + self.params.shift * np.sin(logits)
