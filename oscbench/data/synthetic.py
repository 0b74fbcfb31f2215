"""Synthetic features of a small open-set task, for trying the evaluation verbs without data or training."""

from __future__ import annotations

import numpy as np

from oscbench.features import FeatureInfo, FeatureSet
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.origin import Origin
from oscbench.records import fingerprint

NAME = "demo-synthetic"
"""What tables call this data."""

N_KNOWN, N_NEGATIVE, N_UNKNOWN = 20, 10, 15
"""Number of classes of each kind."""
_PER_CLASS = {"train": 60, "val": 40, "test": 50}
_DIMENSIONS = 24


def demo_features(seed: int = 0) -> dict[str, FeatureSet]:
    """Feature sets ``train``, ``val`` and ``test`` of Gaussian classes around random centres.

    Logits are those of a classifier that knows the centres of the known classes. Negatives lie nearer to known
    classes than unknowns do, as hard negatives would; unknowns are met in the test alone.
    """
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(N_KNOWN, _DIMENSIONS))
    parents = rng.integers(0, N_KNOWN, N_NEGATIVE + N_UNKNOWN)
    nearness = np.repeat([0.55, 0.35], [N_NEGATIVE, N_UNKNOWN])[:, None]
    others = nearness * known[parents] + np.sqrt(1 - nearness**2) * rng.normal(size=(len(parents), _DIMENSIONS))
    centres = np.concatenate((known, others))
    return {split: _draw(split, centres, rng, seed) for split in _PER_CLASS}


def _draw(split: str, centres: np.ndarray, rng: np.random.Generator, seed: int) -> FeatureSet:
    n_classes = len(centres) if split == "test" else N_KNOWN + N_NEGATIVE
    class_index = rng.permutation(np.repeat(np.arange(n_classes), _PER_CLASS[split])).astype(np.int32)
    labels = np.where(class_index < N_KNOWN, class_index, NEGATIVE).astype(np.int64)
    labels[class_index >= N_KNOWN + N_NEGATIVE] = UNKNOWN
    embedding = (centres[class_index] + rng.normal(scale=1.3, size=(len(labels), _DIMENSIONS))).astype(np.float32)
    known = centres[:N_KNOWN]
    logits = embedding @ known.T - 0.5 * np.sum(known**2, axis=1)
    classes = (
        *(f"known-{i:02}" for i in range(N_KNOWN)),
        *(f"negative-{i:02}" for i in range(N_NEGATIVE)),
        *(f"unknown-{i:02}" for i in range(N_UNKNOWN)),
    )
    info = FeatureInfo(
        split=split,
        n_known=N_KNOWN,
        classes=classes,
        fingerprint=fingerprint("features", {"data": NAME, "split": split, "seed": seed}, {}),
        origin=Origin(data=NAME, protocol="", training="", seed=seed, demo=True),
    )
    return FeatureSet.from_arrays(
        embedding=embedding,
        logits=logits.astype(np.float32),
        labels=labels,
        n_known=N_KNOWN,
        class_index=class_index,
        classes=classes,
        info=info,
    )
