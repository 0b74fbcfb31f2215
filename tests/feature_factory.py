"""Synthetic feature folders: Gaussian classes on a sphere, negatives and unknowns between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from oscbench.features import FeatureInfo, FeatureSet
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.origin import Origin


def make_features(
    rows_per_class: int, *, n_known: int = 6, dims: int = 8, negatives: int = 0, unknowns: int = 0, seed: int = 0
) -> FeatureSet:
    """One split: known classes around their centres, the others around centres of their own, shuffled."""
    centres = np.random.default_rng(1234).normal(size=(n_known + 8, dims))  # the same for every split
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_known), rows_per_class)
    labels = np.concatenate([labels, np.full(negatives, NEGATIVE), np.full(unknowns, UNKNOWN)]).astype(np.int64)
    rng.shuffle(labels)
    others = n_known + rng.integers(0, 4, len(labels)) + np.where(labels == UNKNOWN, 4, 0)
    centre = np.where(labels >= 0, labels, others)
    embedding = (centres[centre] + rng.normal(scale=0.7, size=(len(labels), dims))).astype(np.float32)
    logits = (embedding @ centres[:n_known].T).astype(np.float32)
    return FeatureSet.from_arrays(embedding=embedding, logits=logits, labels=labels, n_known=n_known)


def write_feature_folder(folder: Path, *, seed: int = 0, scale: int = 1, negatives: int = 60) -> Path:
    """An own-features folder ``folder/{train,val,test}`` without ``set.json``."""
    splits = {
        "train": make_features(40 * scale, negatives=40 * scale, seed=seed),
        "val": make_features(20 * scale, negatives=negatives * scale, seed=seed + 1),
        "test": make_features(20 * scale, negatives=60 * scale, unknowns=60 * scale, seed=seed + 2),
    }
    for name, features in splits.items():
        part = folder / name
        part.mkdir(parents=True)
        np.save(part / "embedding.npy", features.embedding)
        np.save(part / "labels.npy", features.labels)
        if features.logits is not None:
            np.save(part / "logits.npy", features.logits)
    return folder


def feature_info(protocol: str, n_known: int, split: str) -> FeatureInfo:
    """What the extraction of a protocol's features would have written."""
    return FeatureInfo(
        split=split,
        n_known=n_known,
        classes=(*map(str, range(n_known)), "negative", "unknown"),
        fingerprint=f"{split:f<16}",
        origin=Origin(data="", protocol=protocol, training="", train="0123456789abcdef"),
    )
