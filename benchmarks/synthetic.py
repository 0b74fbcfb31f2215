"""The one generator of features for the benchmarks: classes along a random tree, unequal and heavy-tailed spread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oscbench.features import FeatureSet
from oscbench.labels import NEGATIVE

TARGET_ACCURACY = 0.7
BRANCHING = 3
DECAY = 0.7
NEGATIVE_SHARE = 0.4
SPECTRUM = 0.5


def tree_features(
    n_train: int, n_queries: int, dim: int, n_classes: int, *, seed: int = 0
) -> tuple[FeatureSet, FeatureSet]:
    """Training rows of known classes, and validation rows of which 40 % are negative.

    The mean of a class is a sum of steps along its path in a random tree, each level's step smaller than the one above,
    so that some classes are close neighbours; negative classes are leaves of the same tree. Rows scatter around the
    mean with a width that differs from class to class and Student-t tails; the width is set so that the nearest mean
    by cosine is right for 70 % of the known validation rows. As in features of networks, the i-th direction is smaller
    than the first, by a factor 1 / √i, for means and scatter alike. The similarities to the means are the logits;
    training rows all count as classified correctly, as they mostly are by the network that was trained on them.
    """
    rng = np.random.default_rng(seed)
    n_leaves = n_classes + max(2, n_classes // 2)
    means = _tree_means(rng, n_leaves, dim)
    spread = rng.lognormal(0.0, 0.25, n_leaves)
    train_leaf = rng.permutation(np.arange(n_train) % n_classes)
    is_negative = rng.random(n_queries) < NEGATIVE_SHARE
    leaf = np.where(is_negative, rng.integers(n_classes, n_leaves, n_queries), rng.integers(0, n_classes, n_queries))
    noise = _noise(rng, n_queries, dim) * spread[leaf, None]
    width = _width_for_accuracy(means, leaf[~is_negative], noise[~is_negative], n_classes)
    train = means[train_leaf] + width * spread[train_leaf, None] * _noise(rng, n_train, dim)
    similarity = _cosine(train, means[:n_classes])
    similarity[np.arange(n_train), train_leaf] += 2.0
    queries = means[leaf] + width * noise
    labels = np.where(is_negative, NEGATIVE, leaf)
    return (
        _feature_set(train, train_leaf, similarity),
        _feature_set(queries, labels, _cosine(queries, means[:n_classes])),
    )


def closed_set_accuracy(data: FeatureSet) -> float:
    """Share of known rows whose largest logit is that of their class."""
    return float(data.correct_mask().sum() / (data.labels >= 0).sum())


def _tree_means(rng: np.random.Generator, n_leaves: int, dim: int) -> NDArray[np.float64]:
    place = rng.permutation(n_leaves)
    means = np.zeros((n_leaves, dim))
    nodes, scale = 1, 1.0
    while nodes < n_leaves:
        nodes, scale = min(nodes * BRANCHING, n_leaves), scale * DECAY
        means += scale * _directions(rng, nodes, dim)[place * nodes // n_leaves]
    return means


def _noise(rng: np.random.Generator, n: int, dim: int) -> NDArray[np.float64]:
    """Student-t rows with five degrees of freedom: some are far out in all directions."""
    return _directions(rng, n, dim) / np.sqrt(rng.chisquare(5, (n, 1)) / 5)


def _directions(rng: np.random.Generator, n: int, dim: int) -> NDArray[np.float64]:
    return rng.normal(size=(n, dim)) / np.arange(1, dim + 1) ** SPECTRUM


def _width_for_accuracy(
    means: NDArray[np.float64], leaf: NDArray[np.intp], noise: NDArray[np.float64], n_classes: int
) -> float:
    """By bisection: the accuracy falls as the width grows."""
    low, high = 0.01, 100.0
    for _ in range(25):
        middle = (low * high) ** 0.5
        predicted = _cosine(means[leaf] + middle * noise, means[:n_classes]).argmax(axis=1)
        low, high = (middle, high) if (predicted == leaf).mean() > TARGET_ACCURACY else (low, middle)
    return low


def _cosine(rows: NDArray[np.float64], means: NDArray[np.float64]) -> NDArray[np.float64]:
    product: NDArray[np.float64] = rows @ means.T
    return product / np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(means, axis=1)


def _feature_set(rows: NDArray[np.float64], labels: NDArray[np.intp], logits: NDArray[np.float64]) -> FeatureSet:
    return FeatureSet.from_arrays(
        embedding=rows.astype(np.float32),
        labels=labels.astype(np.int64),
        logits=logits.astype(np.float32),
        n_known=logits.shape[1],
    )
