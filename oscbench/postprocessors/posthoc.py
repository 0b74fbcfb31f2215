"""What the methods that post-process logits and penultimate features share: checked rows, blocks, one code for a grid.

A method is one class with two steps. ``learn(rows)`` keeps what it needs of the known training rows; ``scores(rows)``
gives a number per query for *each* of ``self.settings``, so that a single setting is a grid of one and whatever
settings have in common is computed once. The class that goes with a score is the classifier's; a method with a class
of its own says so in ``decide``.

Arithmetic is in float64, since ties cost correct classifications at small false-positive rates; comparisons with very
many training rows are not, and say so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import FloatArray, ProgressFn
from oscbench.metrics import Predictions
from oscbench.notes import Note, merge_notes
from oscbench.postprocessors.base import (
    POSTPROCESSORS,
    GridAnswer,
    OnePass,
    ScoreKind,
    methods_without,
    require_fitted,
    require_score_kind,
    require_width,
)

Layer = Literal["pooled", "embedding"]
"""``pooled`` is what papers call the penultimate layer; without pooled vectors the embedding stands for it."""

Prediction = Literal["classifier", "method"]
"""Whose class goes with a score: the network's, or the one that the method itself finds most likely."""

Array = NDArray[np.float64]

BLOCK_VALUES: Final = 1 << 22
"""Numbers of a block of rows: enough for a matrix product to run at full speed, few enough for several at once."""

TINY: Final = 1e-12
"""Floor of lengths that are divided by."""


def log_sum_exp(logits: Array) -> Array:
    """(...,) ln of the sum of exponentials along the last axis, without overflow."""
    top = logits.max(axis=-1)
    return np.asarray(top + np.log(np.exp(logits - top[..., None]).sum(axis=-1)))


class Rows:
    """Network outputs of some rows as float64 arrays that were looked at for NaN and for their width.

    Garbage networks have an output more than there are known classes; only the known ones count here.

    Args:
        inputs: Whatever is read of them is checked then.
        who: Named in messages.
        kept: Which rows; default all.
    """

    def __init__(self, inputs: Inputs, who: str, kept: NDArray[np.intp] | None = None) -> None:
        self.inputs, self.who = inputs, who
        self.kept = np.arange(len(inputs)) if kept is None else kept
        self.n_known = inputs.n_known

    def __len__(self) -> int:
        return len(self.kept)

    @cached_property
    def logits(self) -> Array:
        """(N, K) logits of the known classes."""
        return self._checked(self.inputs.require_logits(self.who), "logits")[:, : self.n_known]

    @cached_property
    def predicted(self) -> NDArray[np.int32]:
        """(N,) the classifier's class, the lowest among equals."""
        return np.asarray(np.argmax(self.logits, axis=1), np.int32)

    def stored(self, layer: Layer = "pooled") -> FloatArray:
        """(all rows, P) the features as they are stored."""
        return self.inputs.penultimate if layer == "pooled" else self.inputs.embedding

    def features(self, layer: Layer = "pooled") -> Array:
        """(N, P) features of these rows; for blocks, since training rows may be larger than memory."""
        name = "pooled" if layer == "pooled" and self.inputs.pooled is not None else "embedding"
        return self._checked(self.stored(layer), name)

    def unit_features(self, layer: Layer = "pooled") -> Array:
        """(N, P) features of length 1; a row of zeros has no direction and is refused by name."""
        rows = self.features(layer)
        largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
        if not largest.all():
            bad = self.kept[largest[:, 0] == 0]
            raise UsageError(
                f"{self.who}: row {bad[0]} of the features is all zero and has no direction; remove such rows"
            )
        rows /= largest  # squares of very long and very short rows would leave the range of floats
        return np.asarray(rows / np.sqrt(np.einsum("np,np->n", rows, rows))[:, None])

    def _checked(self, stored: FloatArray, name: str) -> Array:
        rows = np.asarray(stored[self.kept], np.float64)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            bad = self.kept[~finite]
            raise UsageError(f"{name}: row {bad[0]} holds NaN or infinity; remove or repair such rows")
        return rows

    def blocks(self, width: int, at_least: int = 1) -> Iterator[tuple[slice, Self]]:
        """The rows in order, in blocks for arrays of about this width, but not of fewer rows than ``at_least``."""
        step = max(at_least, BLOCK_VALUES // max(1, width))
        for first in range(0, len(self), step):
            part = slice(first, min(len(self), first + step))
            yield part, self._part(part)

    def _part(self, part: slice) -> Self:
        smaller = copy.copy(self)
        smaller.kept = self.kept[part]
        for name in ("logits", "predicted"):  # what was computed for all rows holds for some of them
            if name in vars(self):
                vars(smaller)[name] = vars(self)[name][part]
        return smaller


class TrainingRows(Rows):
    """The known rows of a training set: negatives are never fitted.

    Attributes:
        labels: (N,) 0..K-1.
        notes: What had to be bent; methods add theirs.
    """

    def __init__(self, train: FeatureSet, who: str) -> None:
        super().__init__(train, who, np.flatnonzero(train.labels >= 0))
        self.train = train
        self.labels = np.asarray(train.labels[self.kept])
        self.notes: list[Note] = []
        if not len(self):
            raise UsageError(f"{who}: the training rows hold none of a known class")

    @cached_property
    def head(self) -> tuple[Array, Array]:
        """Weights (K, P) and biases (K,) of the known classes: ``logits = features @ weight.T + bias``."""
        try:
            head, notes = self.train.require_head(self.who)
        except UsageError as error:
            raise UsageError(f"{error}; or use one of {', '.join(methods_without('head'))}") from error
        self.notes += notes
        return np.asarray(head.weight[: self.n_known], np.float64), np.asarray(head.bias[: self.n_known], np.float64)

    def feature_blocks(self, layer: Layer = "pooled") -> Iterator[tuple[slice, Array]]:
        """All rows' features, block by block."""
        for part, block in self.blocks(self.stored(layer).shape[1]):
            yield part, block.features(layer)

    def mean(self, layer: Layer = "pooled") -> Array:
        """(P,) mean of the features."""
        total = np.zeros(self.stored(layer).shape[1])
        for _, block in self.feature_blocks(layer):
            total += block.sum(axis=0)
        return np.asarray(total / len(self))

    def class_means(
        self, of: NDArray[np.bool_] | None = None, *, without: str = "the mean of all stands for theirs"
    ) -> tuple[Array, NDArray[np.bool_]]:
        """(K, P) mean of the features of each class, and which classes have any row; the others' mean is that of all.

        Args:
            of: (N,) rows that count; default all.
            without: What a note says of classes that have no row.
        """
        sums, counts = np.zeros((self.n_known, self.stored().shape[1])), np.zeros(self.n_known)
        for part, block in self.feature_blocks():
            chosen = slice(None) if of is None else of[part]
            np.add.at(sums, self.labels[part][chosen], block[chosen])
            counts += np.bincount(self.labels[part][chosen], minlength=self.n_known)
        there = counts > 0
        if not there.all():
            self.notes.append(
                Note(f"{self.who}: {{}} classes have no training row that counts; {without}", (int((~there).sum()),))
            )
            sums[~there], counts[~there] = sums.sum(axis=0), max(1.0, counts.sum())
        return sums / counts[:, None], there

    def note_signed_features(self) -> None:
        """Notes that some of the features are negative, for methods that were made for what a ReLU leaves."""
        negative = sum(int(np.count_nonzero(block < 0)) for _, block in self.feature_blocks())
        if negative:
            share = max(0.1, round(100 * negative / (len(self) * self.stored().shape[1]), 1))
            self.notes.append(
                Note(f"{self.who}: {{}} % of the features are negative; it was made for ReLU features", (share,))
            )


def decide_by_class(rows: Rows, per_class: Sequence[Array], settings: Sequence[Any]) -> tuple[NDArray[np.int32], Array]:
    """Class and score, both (N, S), of methods with a number per class: the score is the largest.

    The class is the classifier's, as published, unless a setting's ``prediction`` is ``method`` or there is no
    classifier; then it is the one with the largest number.

    Args:
        rows: Whose they are.
        per_class: (N, K) for each setting.
        settings: Records with a field ``prediction``.
    """
    has_classifier = rows.inputs.logits is not None
    label, score = np.empty((len(rows), len(settings)), np.int32), np.empty((len(rows), len(settings)))
    for s, (numbers, setting) in enumerate(zip(per_class, settings, strict=True)):
        score[:, s] = numbers.max(axis=1)
        classifies = has_classifier and setting.prediction == "classifier"
        label[:, s] = rows.predicted if classifies else numbers.argmax(axis=1)
    return label, score


class Posthoc(OnePass):
    """A method of two steps, ``learn`` and ``scores``; a single setting is a grid of one.

    Attributes:
        name: As registered.
        layers: Features whose width must be that of the training rows.
        in_threads: Whether blocks are scored side by side: where sorting takes the time, which one thread does, and not
            products, which all threads share.
        settings: What ``scores`` answers for. A ``SharedFit`` is fitted with those between which all others lie.
        notes: What ``fit`` had to bend.
    """

    name: ClassVar[str]
    layers: ClassVar[tuple[Layer, ...]] = ("pooled",)
    in_threads: ClassVar[bool] = False

    def __init__(self, params: Any = None, score_kind: ScoreKind | None = None) -> None:
        self.params = POSTPROCESSORS.info(self.name).params() if params is None else params
        self.score_kind: ScoreKind = require_score_kind(self.name, score_kind)
        self.settings: Sequence[Any] = (self.params,)
        self.notes: tuple[Note, ...] = ()
        self._widths: dict[str, int] | None = None
        self._learnt: tuple[Note, ...] = ()

    @property
    def label(self) -> str:
        """As tables show it."""
        return POSTPROCESSORS.info(self.name).label

    # --- what a method says --------------------------------------------------------------------------------------

    def learn(self, rows: TrainingRows) -> None:
        """Keeps what ``scores`` needs of the training rows."""

    def scores(self, rows: Rows) -> Array:
        """(N, S) a score for every row and setting: higher is more known."""
        raise NotImplementedError

    def decide(self, rows: Rows) -> tuple[NDArray[np.int32], Array]:
        """Class and score, both (N, S)."""
        scores = self.scores(rows)
        return np.broadcast_to(rows.predicted[:, None], scores.shape), scores

    def bent(self) -> Iterator[Note]:
        """Notes on settings that the training rows do not allow as they are."""
        yield from ()

    def values_per_row(self, width: int) -> int:
        """Numbers that ``scores`` holds for a row at once, for features of this width; decides the size of blocks."""
        return width * len(self.settings)

    def rows_at_once(self) -> int:
        """Rows of a block at least, so that whoever computes is busy."""
        return 1

    # --- what follows from it ------------------------------------------------------------------------------------

    def fit(self, train: FeatureSet) -> Self:
        """Learns from the known training rows and returns itself."""
        rows = TrainingRows(train, self.label)
        self._widths = self._all_widths(train)
        self.learn(rows)
        self._learnt = tuple(rows.notes)
        self.notes = merge_notes(self._learnt, self.bent())
        return self

    def predict(self, inputs: Inputs) -> Predictions:
        """The class, and its score."""
        label, score = self.answer(inputs)
        return Predictions(label[:, 0], score[:, 0])

    def answer(self, inputs: Inputs, progress: ProgressFn | None = None) -> tuple[NDArray[np.int32], Array]:
        """Class and score of every row for every setting, both (N, S), block by block."""
        import torch

        from oscbench.numerics.evm.shard import workers

        rows = self.checked_rows(inputs)
        label, score = (
            np.empty((len(inputs), len(self.settings)), np.int32),
            np.empty((len(inputs), len(self.settings))),
        )

        def of_block(found: tuple[slice, Rows]) -> int:
            part, block = found
            label[part], score[part] = self.decide(block)
            return len(block)

        done, values = 0, max(rows.n_known, self.values_per_row(inputs.penultimate.shape[1]))
        with workers(torch.get_num_threads() if self.in_threads else 1) as run:
            for count in run(of_block, rows.blocks(4 * values if self.in_threads else values, self.rows_at_once())):
                done += count
                if progress is not None:
                    progress(done, len(rows))
        return label, score

    def checked_rows(self, inputs: Inputs) -> Rows:
        """The rows to be scored, refused before ``fit`` and where they are of another width than in training."""
        widths = require_fitted(self._widths, self.label)
        for what, array in self._arrays(inputs).items():
            if what in widths:
                require_width(array, widths[what], what)
        return Rows(inputs, self.label)

    @classmethod
    def best_of_settings(
        cls,
        train: FeatureSet,
        queries: Inputs,
        settings: Sequence[Any],
        *,
        score_kind: ScoreKind,
        source: Posthoc | None = None,
        progress: ProgressFn | None = None,
    ) -> GridAnswer:
        """See ``OnePass``."""
        grid = copy.copy(source) if source is not None else cls(settings[0], score_kind)
        grid.settings, grid.score_kind = settings, score_kind
        if source is None:
            grid.fit(train)
        label, score = grid.answer(queries, progress)
        return GridAnswer(label, score, merge_notes(grid._learnt, grid.bent()))

    def close(self) -> None:
        """Frees nothing: a fitted method is plain arrays."""

    def _arrays(self, inputs: Inputs) -> dict[str, FloatArray]:
        """What is looked at, by name."""
        found: dict[str, FloatArray] = {}
        if inputs.logits is not None:
            found["logits"] = inputs.logits
        if "pooled" in POSTPROCESSORS.info(self.name).needs:
            for layer in self.layers:
                found["pooled features" if layer == "pooled" else "embeddings"] = (
                    inputs.penultimate if layer == "pooled" else inputs.embedding
                )
        return found

    def _all_widths(self, train: FeatureSet) -> dict[str, int]:
        return {what: array.shape[1] for what, array in self._arrays(train).items()}


class SharedFit(Posthoc):
    """A method that learns the same for all settings between some: a search learns once."""

    @classmethod
    def open_source(
        cls,
        train: FeatureSet,
        settings: Sequence[Any],
        make_source: Callable[..., Any] | None = None,
        progress: ProgressFn | None = None,
    ) -> Posthoc:
        """The fitted method, to be asked for settings between these."""
        shared = cls(settings[0])
        shared.settings = settings
        return shared.fit(train)
