"""EVM, the Extreme Value Machine: inclusion in a class by the distances of its rows to the nearest other classes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import NEGATIVE, ProgressFn, check_finite
from oscbench.metrics import Predictions
from oscbench.notes import Note, merge_notes
from oscbench.numerics.evm.gallery import Gallery, Metric
from oscbench.postprocessors.base import (
    NEVER_WINS,
    POSTPROCESSORS,
    About,
    GridAnswer,
    OnePass,
    ScoreKind,
    best_class,
    require_fitted,
    require_score_kind,
    require_width,
)
from oscbench.records import check_choices

if TYPE_CHECKING:
    from oscbench.numerics.evm.fits import FitCounts, InclusionKind
    from oscbench.numerics.evm.source import LocalSource, NeighborSource


@dataclass(frozen=True, kw_only=True)
class EvmParams:
    """Hyperparameters of EVM; the defaults are the published choice for protocol 1 with softmax training.

    Attributes:
        tail_size: Number of smallest distances to rows of other classes that are fitted (lambda).
        distance_multiplier: Factor on those distances when fitting, not when scoring (kappa).
        cover_threshold: Rows whose inclusion by another row of their class is at least this are left out by a greedy
            set cover (omega); 1 keeps every row.
        metric: ``cosine`` as published, or ``euclidean``.
        negatives: Whether negative training rows also count as rows of another class, an idea that the evaluation
            paper (arXiv:2406.09112) leaves for future work.
    """

    tail_size: int = 1000
    distance_multiplier: float = 0.4
    cover_threshold: float = 1.0
    metric: Metric = "cosine"
    negatives: bool = False

    def __post_init__(self) -> None:
        if self.tail_size < 1:
            raise UsageError(f"tail_size must be >= 1, got {self.tail_size}")
        if not 0 < self.distance_multiplier < np.inf:
            raise UsageError(f"distance_multiplier must be > 0 and finite, got {self.distance_multiplier}")
        if not 0 < self.cover_threshold <= 1:
            raise UsageError(f"cover_threshold must be in (0, 1], got {self.cover_threshold}")
        check_choices(self)


@POSTPROCESSORS.register(
    "evm",
    label="EVM",
    params=EvmParams,
    paper="arXiv:1506.06112",
    score_kinds=("log", "probability", "published"),
    one_pass=True,
    cost="pairs",
    about=About(
        "Every training row reaches as far as a Weibull model of its smallest distances to other classes says.",
        "max_n 1 - exp(-(x / scale_n)^shape_n), x = 1 + kappa d_n - d(z, z_n), d_n the largest of n's tail",
        "Features without logits; classes of several clusters; strict false positive rates.",
        "Many rows: fitting compares all pairs, scoring every kept row; hyperparameters that must be searched.",
    ),
)
class Evm(OnePass):
    """Probability of inclusion in each known class, the largest over the class's training rows.

    For every correctly classified training row, its smallest distances d to rows of other classes are shifted to
    x = 1 + kappa (d_t - d), d_t the largest of the tail, and fitted by a Weibull distribution. A query at distance d is
    included by 1 - exp(-(x / scale)^shape) with x = 1 + kappa d_t - d, 0 where x is negative. The score kind ``log`` is
    shape (ln max(x, 1e-6) - ln scale), which orders queries in the same way without ever saturating; ``published`` is
    ``probability``, since the code behind the published tables computes it in double precision too.

    ``fit`` and ``score`` compute in float64; ``best_of_settings`` computes all settings of a search at once, in float32
    with the winners scored again in float64.

    Attributes:
        counts: How many tails were fitted, how many had no spread (a step at d = kappa d_t), how many were clipped.
        notes: What ``fit`` had to bend.
    """

    bounds_memory = True

    def __init__(self, params: EvmParams | None = None, score_kind: ScoreKind | None = None) -> None:
        from oscbench.numerics.evm.fits import FitCounts

        self.params = params or EvmParams()
        self.score_kind: ScoreKind = require_score_kind("evm", score_kind)
        self.counts = FitCounts()
        self.notes: tuple[Note, ...] = ()
        self._source: LocalSource | None = None

    def fit(self, train: FeatureSet) -> Self:
        """Fits the tail of each correctly classified row, and reduces the rows where a cover threshold asks for it."""
        from oscbench.numerics.evm.source import LocalSource

        with _usage_errors():
            source = LocalSource(self.gallery(train, self.params), precision="float64", keep_tails=False)
            source.fit([self.params])
        self._source, self.counts = source, source.counts
        self.notes = tuple(_notes(train, source.gallery, source.counts))
        return self

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N, K) log scores or probabilities of inclusion."""
        source = require_fitted(self._source, "EVM")
        check_finite(inputs.embedding, "embedding")
        require_width(inputs.embedding, source.gallery.rows.shape[1], "embeddings")
        with _usage_errors():
            kind = _inclusion_kind(self.score_kind)
            return source.shards[0].class_scores(inputs.embedding, 0, kind, NEVER_WINS[kind])

    def predict(self, inputs: Inputs) -> Predictions:
        """The class with the highest score, and that score."""
        return best_class(self.score(inputs))

    @classmethod
    def best_of_settings(
        cls,
        train: FeatureSet,
        queries: Inputs,
        settings: Sequence[EvmParams],
        *,
        score_kind: ScoreKind,
        source: NeighborSource | None = None,
        progress: ProgressFn | None = None,
    ) -> GridAnswer:
        """Predicted class and its score, both (Q, S): distances once, all settings in one pass.

        Args:
            train: Rows to fit on.
            queries: Rows to score.
            settings: Hyperparameters.
            score_kind: ``log``, ``probability`` or ``published``.
            source: Who computes, made for the ``gallery`` of these rows; default: this process in float32. Settings
                with a cover threshold below 1 are always computed by this process.
            progress: Called as ``progress(done, total)``.
        """
        from oscbench.numerics.evm.source import Meter

        kind = _inclusion_kind(require_score_kind("evm", score_kind))
        check_finite(queries.embedding, "embedding")
        require_width(queries.embedding, train.embedding.shape[1], "embeddings")
        label = np.empty((len(queries), len(settings)), np.int32)
        score = np.empty((len(queries), len(settings)))
        notes: tuple[Note, ...] = ()
        meter = Meter(progress, len(settings))
        for chosen, who in _computed_by(train, settings, source):
            with _usage_errors():
                label[:, chosen], score[:, chosen] = who.best(
                    queries.embedding,
                    [settings[s] for s in chosen],
                    score_kind=kind,
                    progress=meter.phase(len(chosen)),
                )
            notes = merge_notes(notes, _notes(train, who.gallery, who.counts))
        return GridAnswer(label, score, notes)

    @classmethod
    def open_source(
        cls,
        train: FeatureSet,
        settings: Sequence[EvmParams],
        make_source: Callable[[Gallery], NeighborSource] | None = None,
        progress: ProgressFn | None = None,
    ) -> NeighborSource | None:
        """A source for many calls of ``best_of_settings`` with settings like these: their tails are computed once.

        Args:
            train: Rows to fit on.
            settings: Between these all settings lie; ``None`` is returned where they need different galleries.
            make_source: Who computes; default: this process.
            progress: Called as ``progress(done, total)``.
        """
        from oscbench.numerics.evm.source import LocalSource

        if len({(params.metric, params.negatives) for params in settings}) != 1:
            return None
        longest = max(settings, key=lambda params: params.tail_size)
        with _usage_errors():
            source = (make_source or LocalSource)(cls.gallery(train, longest))
            # A source keeps the longest tails it was asked for.
            source.best(train.embedding[:1], [longest], progress=progress)
        return source

    @staticmethod
    def gallery(train: FeatureSet, params: EvmParams) -> Gallery:
        """The rows that EVM is fitted on: correct known rows by class, and negatives where the parameters say so."""
        check_finite(train.embedding, "training embedding")
        correct = np.flatnonzero(train.correct_mask())
        if not len(correct):
            raise UsageError(f"none of the {len(train)} training rows is known and classified correctly")
        if params.metric == "cosine":
            _refuse_zero_rows(train)
        others = train.embedding[train.labels == NEGATIVE] if params.negatives else None
        if others is not None and not len(others):
            raise UsageError("negatives=True, but the training rows hold no negatives (label -1)")
        with _usage_errors():
            return Gallery.build(
                train.embedding[correct], train.labels[correct], train.n_known, metric=params.metric, others=others
            )


def _inclusion_kind(kind: ScoreKind) -> InclusionKind:
    return "log" if kind == "log" else "probability"


def _computed_by(
    train: FeatureSet, settings: Sequence[EvmParams], source: NeighborSource | None
) -> Iterator[tuple[list[int], NeighborSource]]:
    """Positions of settings that share a gallery, with who computes them."""
    from oscbench.numerics.evm.source import LocalSource

    if source is not None and len({(params.metric, params.negatives) for params in settings}) > 1:
        raise UsageError("one source serves one metric and one choice of negatives; leave the source out for several")

    def needs(s: int) -> tuple[str, bool, bool]:
        return settings[s].metric, settings[s].negatives, source is None or settings[s].cover_threshold < 1

    budget = source.memory_budget if source is not None else None
    for (_, _, here), group in itertools.groupby(sorted(range(len(settings)), key=needs), key=needs):
        chosen = list(group)
        if here or source is None:
            yield chosen, LocalSource(Evm.gallery(train, settings[chosen[0]]), memory_budget=budget)
        else:
            yield chosen, source


def _refuse_zero_rows(train: FeatureSet) -> None:
    zero = np.flatnonzero(~np.any(train.embedding, axis=1) & ((train.labels >= 0) | (train.labels == NEGATIVE)))
    if len(zero):
        raise UsageError(
            f"training embedding: row {zero[0]} is all zero ({len(zero)} such rows), so it has no cosine distance; "
            "remove these rows or use metric: euclidean"
        )


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Bad values found by the numerics are the user's to repair."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


def _notes(train: FeatureSet, gallery: Gallery, counts: FitCounts) -> Iterator[Note]:
    """A note for everything that was not as asked."""
    if train.logits is None:
        yield Note("EVM: no logits, so all known rows count as correctly classified")
    if missing := gallery.empty_classes:
        names = ", ".join(train.classes[label] for label in missing[:5]) + (", …" if len(missing) > 5 else "")
        form = f"EVM: {{}} classes have no correct training row and are never predicted: {names}"
        yield Note(form, (len(missing),))
    if counts.constant:
        yield Note("EVM: {} of {} tails have no spread and became a step", (counts.constant, counts.fits))
    if counts.clipped:
        yield Note("EVM: {} of {} tails were clipped to the rows of other classes", (counts.clipped, counts.fits))
