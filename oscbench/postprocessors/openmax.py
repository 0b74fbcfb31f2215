"""OpenMax: logits lowered where a query lies too far from the mean of its class (Bendale and Boult, CVPR 2016)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import FloatArray, ProgressFn, check_finite
from oscbench.metrics import Predictions
from oscbench.notes import Note
from oscbench.postprocessors.base import (
    NEVER_WINS,
    POSTPROCESSORS,
    About,
    GridAnswer,
    OnePass,
    ScoreKind,
    best_class,
    finite_logits,
    require_fitted,
    require_score_kind,
    require_width,
)
from oscbench.records import check_choices

if TYPE_CHECKING:
    from oscbench.numerics.openmax import TailFits


@dataclass(frozen=True, kw_only=True)
class OpenMaxParams:
    """Hyperparameters of OpenMax; the defaults are the published choice for protocol 1 with softmax training.

    Attributes:
        tail_size: Number of largest distances to the class mean that are fitted (lambda).
        distance_multiplier: Factor on those distances when fitting, not when scoring (kappa).
        alpha: Number of largest logits that are revised.
        weights: ``paper``: the i-th largest logit is revised by (alpha - i) / alpha, so that the last is left as it
            is; ``code``: by (alpha + 1 - i) / alpha, as in the authors' program.
    """

    tail_size: int = 1000
    distance_multiplier: float = 2.0
    alpha: int = 10
    weights: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        if self.tail_size < 1:
            raise UsageError(f"tail_size must be >= 1, got {self.tail_size}")
        check_choices(self)
        if not 0 < self.distance_multiplier < np.inf:
            raise UsageError(f"distance_multiplier must be > 0 and finite, got {self.distance_multiplier}")
        if self.alpha < 1:
            raise UsageError(f"alpha must be >= 1, got {self.alpha}")
        if self.weights not in ("paper", "code"):
            raise UsageError(f"weights must be 'paper' or 'code', got {self.weights!r}")


@POSTPROCESSORS.register(
    "openmax",
    label="OpenMax",
    params=OpenMaxParams,
    paper="arXiv:1511.06233",
    needs={"logits"},
    score_kinds=("log", "probability", "published"),
    one_pass=True,
    cost="features",
    about=About(
        "Logits are moved to an unknown class by how far a row is from the means of its likeliest classes.",
        "max_k softmax(l')_k, l'_i = l_i (1 - r_i F_i(d_i)), l'_unknown = sum_i (l_i - l'_i), F_i Weibull, r_i by rank",
        "Classes of one compact cluster each, trained with plain softmax.",
        "Classes of several clusters; negative logits, which a smaller weight makes larger; sensitive to its settings.",
    ),
)
class OpenMax(OnePass):
    """Probabilities of the known classes after part of the top logits was moved to an unknown class.

    For each class the largest cosine distances d of its correct training rows to their mean are shifted to
    x = 1 + kappa (d - d_t), d_t the smallest of the tail, and fitted by a Weibull distribution. A query at distance d
    has the knownness w = exp(-(x / scale)^shape) with x = max(0, 1 + d - kappa d_t). Its i-th largest logit is
    multiplied by 1 - (alpha - i) / alpha (1 - w); the unknown logit is the sum of what was taken away, and the scores
    are the softmax over the 1 + K logits without the unknown one. A tail without spread is a step at d = kappa d_t.
    The score kind ``published`` revises the logits and takes the softmax in single precision, as the code behind the
    published tables does.

    Attributes:
        notes: What ``fit`` had to bend: clipped tails or alpha, tails without spread, classes without a correct row.
    """

    def __init__(self, params: OpenMaxParams | None = None, score_kind: ScoreKind | None = None) -> None:
        self.params = params or OpenMaxParams()
        self.score_kind: ScoreKind = require_score_kind("openmax", score_kind)
        self.notes: tuple[Note, ...] = ()
        self._model: _Model | None = None

    def fit(self, train: FeatureSet) -> Self:
        """Fits the tail of each class on its correctly classified rows."""
        self._model = _Model.fit(train, [self.params])
        self.notes = self._model.notes
        return self

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N, K) probabilities, or their logarithms, of the known classes."""
        from oscbench.numerics.openmax import published_scores, rank_logits, score_setting

        model = require_fitted(self._model, "OpenMax")
        logits, distances = model.look_at(inputs)
        scores = np.full((len(inputs), model.classes.n_known), NEVER_WINS[self.score_kind])
        alpha, offset = int(model.alphas[0]), int(model.offsets[0])
        if self.score_kind == "published":
            found: FloatArray = published_scores(logits, distances, model.fits, alpha=alpha, offset=offset)
        else:
            ranked, log = rank_logits(logits), self.score_kind == "log"
            found = score_setting(ranked, distances, model.fits, alpha=alpha, offset=offset, log=log)
        scores[:, model.classes.usable] = found
        return scores

    def predict(self, inputs: Inputs) -> Predictions:
        """The class with the highest score, and that score."""
        return best_class(self.score(inputs))

    @classmethod
    def best_of_settings(
        cls,
        train: FeatureSet,
        queries: Inputs,
        settings: Sequence[OpenMaxParams],
        *,
        score_kind: ScoreKind,
        source: Any = None,
        progress: ProgressFn | None = None,
    ) -> GridAnswer:
        """Predicted class and its score, both (Q, S), equal to the last bit to ``predict``.

        Distances are computed once, each tail is fitted once, and all alpha share one sort; ``source`` is not used.
        """
        from oscbench.numerics.openmax import best_of_grid, best_of_published_grid

        require_score_kind("openmax", score_kind)
        model = _Model.fit(train, settings)
        logits, distances = model.look_at(queries)
        grid = (logits, distances, model.fits, model.fit_idx, model.alphas, model.offsets)
        if score_kind == "published":
            best, score = best_of_published_grid(*grid)
        else:
            best, score = best_of_grid(*grid, log=score_kind == "log")
        if progress is not None:
            progress(len(settings), len(settings))
        return GridAnswer(model.classes.usable.astype(np.int32)[best], score, model.notes)


@dataclass(frozen=True, eq=False)
class _Classes:
    """What does not depend on the setting: where each class lies and how far from it its correct rows are.

    Attributes:
        usable: (L,) classes with a correct row, ascending; everything below has one entry per such class.
        means: (L, D) unit vectors towards the mean activation vectors.
        distances: L arrays of falling cosine distances.
    """

    usable: NDArray[np.intp]
    means: NDArray[np.float64]
    distances: tuple[NDArray[np.float64], ...]
    n_known: int
    n_outputs: int

    @classmethod
    def of(cls, train: FeatureSet) -> _Classes:
        n_outputs = finite_logits(train, "OpenMax").shape[1]
        check_finite(train.embedding, "training embedding")
        correct = train.correct_mask()
        usable = np.unique(train.labels[correct]).astype(np.intp)
        if not len(usable):
            raise UsageError("OpenMax: no training row is classified correctly, so there is nothing to fit")
        means = np.empty((len(usable), train.embedding.shape[1]))
        distances = []
        for mean, label in zip(means, usable, strict=True):
            rows = np.flatnonzero(correct & (train.labels == label))
            embedding = train.embedding[rows]
            embedding.mean(axis=0, dtype=np.float64, out=mean)
            length = np.linalg.norm(mean)
            if length == 0:
                raise _no_direction(f"mean of class {train.classes[label]}", 1)
            mean /= length
            to_mean = _distances(embedding, mean[None], "training embedding in row", rows)[:, 0]
            distances.append(np.sort(to_mean)[::-1])
        return cls(usable, means, tuple(distances), train.n_known, n_outputs)


@dataclass(frozen=True, eq=False)
class _Model:
    """The classes with the fits of one or more settings.

    Attributes:
        fits: One row per distinct (clipped tail size, multiplier).
        fit_idx: (S,) row of ``fits`` of each setting.
        alphas: (S,) number of revised logits, at most the number of usable classes.
        offsets: (S,) 1 where the weights are those of the authors' program.
    """

    classes: _Classes
    fits: TailFits
    fit_idx: NDArray[np.int64]
    alphas: NDArray[np.int64]
    offsets: NDArray[np.int64]
    notes: tuple[Note, ...]

    @classmethod
    def fit(cls, train: FeatureSet, settings: Sequence[OpenMaxParams]) -> _Model:
        classes = _Classes.of(train)
        longest = max(map(len, classes.distances))  # larger tail sizes are one and the same
        pairs = [(min(params.tail_size, longest), params.distance_multiplier) for params in settings]
        distinct = list(dict.fromkeys(pairs))
        fits, constant = _fit_tails(classes, distinct)
        return cls(
            classes=classes,
            fits=fits,
            fit_idx=np.array([distinct.index(pair) for pair in pairs]),
            alphas=np.array([min(params.alpha, len(classes.usable)) for params in settings]),
            offsets=np.array([int(params.weights == "code") for params in settings]),
            notes=(*_losses(train, classes, constant), *_clippings(classes, settings)),
        )

    def look_at(self, inputs: Inputs) -> tuple[FloatArray, NDArray[np.float64]]:
        """The logits of the usable classes and the distances to their means, both (N, L)."""
        classes = self.classes
        logits = require_width(finite_logits(inputs, "OpenMax"), classes.n_outputs, "logits")
        embedding = require_width(inputs.embedding, classes.means.shape[1], "embeddings")
        check_finite(embedding, "embedding")
        distances = _distances(embedding, classes.means, "embedding in row", range(len(embedding)))
        return logits[:, classes.usable], distances


def _distances(
    rows: FloatArray, means: NDArray[np.float64], what: str, names: Sequence[int] | NDArray[np.intp]
) -> NDArray[np.float64]:
    """(N, L) cosine distances to unit vectors; a row without direction has none and is refused by name."""
    from oscbench.numerics.openmax import mean_distances

    distances = mean_distances(rows, means)
    zero = np.flatnonzero(np.isnan(distances[:, 0]))
    if len(zero):
        raise _no_direction(f"{what} {names[zero[0]]}", len(zero))
    return distances


def _no_direction(what: str, count: int) -> UsageError:
    return UsageError(f"OpenMax: {what} is all zeros and has no direction ({count} such)")


def _fit_tails(classes: _Classes, pairs: Sequence[tuple[int, float]]) -> tuple[TailFits, NDArray[np.bool_]]:
    """The fits of every (tail size, multiplier) and which of them, (F, L), had no spread.

    The kernel fits the smallest distances of a row, shifted by the largest of them; with the sign changed these are
    the largest ones. It is asked for one pair at a time, so that a fit does not depend on the others.
    """
    from oscbench.numerics.kernels import fit_rows
    from oscbench.numerics.openmax import TailFits

    counts = np.array([len(distances) for distances in classes.distances])
    tails = np.zeros((len(counts), counts.max()))
    for row, distances in zip(tails, classes.distances, strict=True):
        row[: len(distances)] = -distances
    shape, log_scale = np.empty((len(pairs), len(counts), 1)), np.empty((len(pairs), len(counts), 1))
    constant = np.empty(shape.shape, np.bool_)
    only = np.zeros(1, np.int64)
    for f, (tail_size, multiplier) in enumerate(pairs):
        sizes, multipliers = np.array([tail_size]), np.array([multiplier])
        fit_rows(tails, counts, sizes, multipliers, only, shape[f], log_scale[f], constant[f])
    last = np.minimum([[tail_size] for tail_size, _ in pairs], counts) - 1  # (F, L)
    shift = -tails[np.arange(len(counts)), last] * [[multiplier] for _, multiplier in pairs]
    return TailFits(shape[..., 0], log_scale[..., 0], shift), constant[..., 0]


def _losses(train: FeatureSet, classes: _Classes, constant: NDArray[np.bool_]) -> Iterator[Note]:
    """A note for the classes, and one for the tails, that could not be fitted."""
    missing = np.setdiff1d(np.arange(train.n_known), classes.usable)
    if len(missing):
        names = ", ".join(train.classes[label] for label in missing[:5]) + (", …" if len(missing) > 5 else "")
        yield Note(
            f"OpenMax: {{}} classes have no correct training row and are never predicted: {names}", (len(missing),)
        )
    if constant.any():
        counts = (int(np.count_nonzero(constant)), constant.size)
        yield Note("OpenMax: {} of {} tails have no spread and became a step", counts)


def _clippings(classes: _Classes, settings: Sequence[OpenMaxParams]) -> Iterator[Note]:
    """A note for tail sizes, and one for alphas, that are larger than the data allow."""
    sizes = np.array([len(distances) for distances in classes.distances])
    tail_size = max(params.tail_size for params in settings)
    if (sizes < tail_size).any():
        counts = (tail_size, int(np.count_nonzero(sizes < tail_size)), len(sizes), int(sizes.min()))
        yield Note("OpenMax: tail size {} clipped for {} of {} classes, the smallest has {} correct rows", counts)
    clipped = [params.alpha for params in settings if params.alpha > len(sizes)]
    if clipped:
        numbers = (max(clipped), len(sizes), len(clipped))
        yield Note("OpenMax: alpha up to {} clipped to {} classes in {} settings", numbers)
