"""The golden data of the post-hoc methods, and how a method is asked about them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oscbench.features import FeatureSet, Head, Inputs
from oscbench.postprocessors import POSTPROCESSORS

PATH = Path(__file__).parent / "data" / "posthoc_golden.npz"
K = 10


@cache
def golden() -> dict[str, NDArray[Any]]:
    with np.load(PATH) as stored:
        return dict(stored)


@cache
def train() -> FeatureSet:
    g = golden()
    return FeatureSet.from_arrays(
        embedding=g["train_embedding"],
        labels=g["train_labels"].astype(np.int64),
        logits=g["train_logits"],
        pooled=g["train_pooled"],
        n_known=K,
        head=Head(g["weight"], g["bias"]),
    )


@cache
def queries() -> Inputs:
    g = golden()
    return Inputs(embedding=g["query_embedding"], logits=g["query_logits"], pooled=g["query_pooled"], n_known=K)


def fitted(name: str, rows: FeatureSet | None = None, **params: Any) -> Any:
    method = POSTPROCESSORS.info(name)
    return method.value(method.params(**params)).fit(train() if rows is None else rows)


def check_golden(name: str, key: str, **params: Any) -> None:
    """The method's scores are those of the original, within 1e-4 of their standard deviation."""
    found = fitted(name, **params).predict(queries())
    expected = golden()[key]
    assert np.abs(found.score - expected).max() <= 1e-4 * expected.std(), key
    np.testing.assert_array_equal(found.label, golden()["query_logits"].argmax(axis=1))
