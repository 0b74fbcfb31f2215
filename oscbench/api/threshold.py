"""``threshold``: the score above which a sample is accepted, for a false positive rate one can afford."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from oscbench.report.evaluation import ThresholdReport
    from oscbench.runs import RunTitle


@dataclass(frozen=True, kw_only=True)
class ThresholdResult:
    """A threshold that was chosen.

    Attributes:
        title: What the scores are.
        report: The threshold, what it gives where it was chosen, and what it does elsewhere.
    """

    title: RunTitle
    report: ThresholdReport

    @property
    def value(self) -> float:
        """A sample is accepted when its highest score is at or above it."""
        return self.report.threshold.value

    @property
    def table(self) -> pd.DataFrame:
        """A row for where it was chosen, and one for each other split and kind of unknown sample."""
        import pandas as pd

        chosen = self.report.threshold
        points = {(self.report.chosen_on, "negative"): chosen.point} | dict(self.report.applied)
        rows = [
            {
                "split": split,
                "against": kind,
                "known": point.n_known,
                "others": point.n_unknown,
                "let in": point.n_false_positives,
                "FPR": point.fpr,
                "CCR": point.ccr,
            }
            for (split, kind), point in points.items()
        ]
        return pd.DataFrame(rows)

    def document(self) -> dict[str, Any]:
        """All of it in plain values, as ``oscbench threshold --json`` prints it."""
        from oscbench.report.tables import threshold_document

        return self.title.document() | threshold_document(self.report)


def threshold(scores: str | Path, fpr: float, *, bootstrap: int = 1000, seed: int = 0) -> ThresholdResult:
    """The threshold chosen on validation negatives, the CCR it gives, and what it does on the test.

    Args:
        scores: Folder with ``val/`` (and ``test/``), or one with ``scores.npy``; ``demo`` for synthetic ones.
        fpr: Share of negatives that may be taken in.
        bootstrap: Resamples behind the 95 % interval of CCR.
        seed: Of the resamples.

    >>> chosen = threshold("demo", 0.1, bootstrap=10)
    >>> chosen.table[["split", "against", "let in", "CCR"]].round(2).values.tolist()
    [['val', 'negative', 40, 0.54], ['test', 'negative', 57, 0.53], ['test', 'unknown', 37, 0.53]]
    """
    from oscbench.errors import UsageError
    from oscbench.report.evaluation import choose_threshold
    from oscbench.runs import runs_from_scores

    if not 0 <= fpr <= 1 or bootstrap < 1:
        raise UsageError(f"threshold: fpr lies in [0, 1] and bootstrap is at least 1, got {fpr} and {bootstrap}")
    (run,) = runs_from_scores([scores])
    return ThresholdResult(title=run.title, report=choose_threshold(run.splits, fpr, resamples=bootstrap, seed=seed))
