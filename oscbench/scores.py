"""Scores: what a post-processor says about the rows of a split, in memory and as a folder of arrays."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oscbench.artifacts import load_array
from oscbench.errors import UsageError
from oscbench.features import read_info, save_rows
from oscbench.labels import IntArray, check_finite, check_rows, classes_of_labels
from oscbench.metrics import Predictions, Scores, predict
from oscbench.origin import Origin


@dataclass(frozen=True, kw_only=True)
class ScoreInfo:
    """What a split's scores were made from, as ``set.json`` keeps it beside the arrays.

    Attributes:
        split: ``val`` or ``test``.
        n_known: K.
        classes: Names of all classes, known ones first in label order.
        fingerprint: Of these scores.
        origin: The training behind the features.
        algorithm: The post-processor.
        params: All its hyperparameters.
        score_kind: The scale of the scores.
        confidence: γ⁺, γ⁻ and γ of the network (``metrics.Confidence`` by name, ``None`` for NaN) and, as ``unknown``,
            its γ⁻ on unknowns, kept because scores have no output for negatives any more; ``None`` without logits.
    """

    split: str
    n_known: int
    classes: tuple[str, ...]
    fingerprint: str
    origin: Origin
    algorithm: str
    params: dict[str, Any]
    score_kind: str
    confidence: dict[str, float | None] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreSet:
    """Predicted class and score of every row of one split, which is all that any metric looks at.

    Attributes:
        prediction: (N,) int32, the predicted known class.
        score: (N,) float64, higher = more known; goes to the threshold.
        scores: (N, K) float64 where the method has a number per class, else ``None``.
        labels: (N,) int64, known 0..K-1, negative -1, unknown -2.
        ids: (N,) int64 ascending, the row of each sample in its split's table.
        class_index: (N,) int32 into ``classes``.
        classes: Names of all classes, known ones first in label order.
        n_known: K.
        info: What it was made from; ``None`` for a user's own scores.
    """

    prediction: NDArray[np.int32]
    score: NDArray[np.float64]
    scores: NDArray[np.float64] | None = None
    labels: IntArray
    ids: IntArray
    class_index: IntArray
    classes: tuple[str, ...]
    n_known: int
    info: ScoreInfo | None = None

    def __post_init__(self) -> None:
        n = len(self.labels)
        for name, array in (("prediction", self.prediction), ("score", self.score)):
            if array.shape != (n,):
                raise UsageError(f"{name} has shape {array.shape}, labels have {n} rows")
        if self.scores is not None and self.scores.shape != (n, self.n_known):
            raise UsageError(
                f"scores have shape {self.scores.shape}, labels have {n} rows and {self.n_known} known classes"
            )
        check_rows(self.labels, self.ids, self.class_index, self.classes, self.n_known)
        bad = np.flatnonzero((self.prediction < 0) | (self.prediction >= self.n_known))
        if len(bad):
            raise UsageError(
                f"prediction {self.prediction[bad[0]]} in row {bad[0]} is outside 0..{self.n_known - 1} "
                f"({len(bad)} such rows)"
            )

    @property
    def predictions(self) -> Predictions:
        """Class and score of each row, as the metrics take them."""
        return Predictions(self.prediction, self.score)

    @classmethod
    def from_scores(
        cls,
        scores: Scores,
        labels: IntArray,
        *,
        n_known: int | None = None,
        ids: IntArray | None = None,
        class_index: IntArray | None = None,
        classes: tuple[str, ...] | None = None,
        info: ScoreInfo | None = None,
    ) -> ScoreSet:
        """A score set from (N, K) scores, the highest of each row deciding, or from predictions.

        Args:
            scores: The matrix, which is kept, or predictions.
            labels: (N,).
            n_known: K of predictions; default: the largest class that is predicted or labelled, plus one.
            ids: Default: the row.
            class_index: Default: from the labels, all negatives and all unknowns one class each.
            classes: Go with ``class_index``.
            info: What the scores were made from.
        """
        matrix = None if isinstance(scores, Predictions) else np.asarray(scores, np.float64)
        try:
            found = predict(scores)
        except ValueError as error:
            raise UsageError(str(error)) from error
        if matrix is not None:
            n_known = matrix.shape[1]
        elif n_known is None:
            n_known = int(max(found.label.max(initial=-1), labels.max(initial=-1))) + 1
        if class_index is None or classes is None:
            class_index, classes = classes_of_labels(labels, n_known)
        return cls(
            prediction=np.asarray(found.label, np.int32),
            score=np.asarray(found.score, np.float64),
            scores=matrix,
            labels=labels,
            ids=np.arange(len(labels), dtype=np.int64) if ids is None else ids,
            class_index=class_index,
            classes=classes,
            n_known=n_known,
            info=info,
        )

    def content_fingerprint(self) -> str:
        """First 16 hex digits of the SHA-256 over classes and scores of all rows."""
        digest = hashlib.sha256()
        for array in (self.prediction, self.score):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Writes the score set folder whole or not at all; needs ``info``."""
        arrays: dict[str, NDArray[Any] | None] = {
            "prediction": np.asarray(self.prediction, np.int32),
            "score": np.asarray(self.score, np.float64),
            "scores": None if self.scores is None else np.asarray(self.scores, np.float64),
        }
        save_rows(folder, self, arrays)

    @classmethod
    def load(cls, folder: Path) -> ScoreSet:
        """Reads and checks a score set folder, memory-mapped.

        Own scores (no ``set.json``) need ``labels.npy`` and either ``scores.npy`` or both ``prediction.npy`` and
        ``score.npy``; ids and classes default as for features.
        """
        if not folder.is_dir():
            raise UsageError(f"score folder {folder} does not exist")
        info = read_info(ScoreInfo, folder, "make the scores again")
        labels = load_array(folder / "labels.npy", np.int64, 1)
        has_ids = info is not None or (folder / "ids.npy").exists()
        ids = load_array(folder / "ids.npy", np.int64, 1) if has_ids else np.arange(len(labels), dtype=np.int64)
        decided = info is not None or (folder / "prediction.npy").exists()
        matrix: NDArray[np.float64] | None = None
        if not decided or (folder / "scores.npy").exists():
            matrix = load_array(folder / "scores.npy", np.float64, 2)
            check_finite(matrix, str(folder / "scores.npy"))
            if not decided:
                return cls.from_scores(matrix, labels, ids=ids)
        prediction = load_array(folder / "prediction.npy", np.int32, 1)
        score = load_array(folder / "score.npy", np.float64, 1)
        check_finite(score[:, None], str(folder / "score.npy"))
        if info is not None:
            n_known, classes = info.n_known, info.classes
            class_index: IntArray = load_array(folder / "class_index.npy", np.int32, 1)
        else:
            n_known = matrix.shape[1] if matrix is not None else int(max(prediction.max(), labels.max())) + 1
            class_index, classes = classes_of_labels(labels, n_known)
        return cls(
            prediction=prediction,
            score=score,
            scores=matrix,
            labels=labels,
            ids=ids,
            class_index=class_index,
            classes=classes,
            n_known=n_known,
            info=info,
        )
