"""MSS and MLS against the plainest loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.postprocessors.base import usable_score_kind
from oscbench.postprocessors.max_score import MaximumLogitScore, MaximumSoftmaxScore
from oscbench.registry import NoParams

K = 4


def feature_set(n_outputs: int, seed: int = 0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    return FeatureSet.from_arrays(
        embedding=rng.normal(size=(30, 3)),
        labels=rng.integers(-2, K, 30),
        logits=5 * rng.normal(size=(30, n_outputs)),
        n_known=K,
    )


@pytest.mark.parametrize("n_outputs", [K, K + 1])
def test_mss_is_the_softmax_over_all_outputs(n_outputs: int) -> None:
    """The garbage output takes part in the sum and is not among the scores."""
    data = feature_set(n_outputs)
    assert data.logits is not None
    expected = np.empty((len(data), K))
    for n in range(len(data)):
        total = sum(math.exp(v) for v in data.logits[n])
        for k in range(K):
            expected[n, k] = math.exp(data.logits[n, k]) / total
    probability = MaximumSoftmaxScore(NoParams(), score_kind="probability").fit(data).score(data.inputs())
    log = MaximumSoftmaxScore(NoParams(), score_kind="log").fit(data).score(data.inputs())
    np.testing.assert_allclose(probability, expected, rtol=1e-12)
    np.testing.assert_allclose(log, np.log(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n_outputs", [K, K + 1])
def test_mls_is_the_first_logits(n_outputs: int) -> None:
    data = feature_set(n_outputs)
    assert data.logits is not None
    scores = MaximumLogitScore().fit(data).score(data.inputs())
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(scores, data.logits[:, :K])
    assert not np.shares_memory(scores, data.logits)


def test_score_kinds() -> None:
    assert MaximumSoftmaxScore().score_kind == "log"
    assert MaximumLogitScore().score_kind == "logit"
    assert usable_score_kind("mls", "log") == usable_score_kind("mls", "published") == "logit"
    assert usable_score_kind("mss", "probability") == "probability"
    with pytest.raises(UsageError, match="MLS has no score kind 'probability'; use logit"):
        MaximumLogitScore(score_kind="probability")
    with pytest.raises(UsageError, match="MSS has no score kind 'logit'; use log or probability or published"):
        usable_score_kind("mss", "logit")


@pytest.mark.parametrize("method", [MaximumSoftmaxScore, MaximumLogitScore])
def test_bad_inputs_are_refused(method: type[MaximumSoftmaxScore | MaximumLogitScore]) -> None:
    data = feature_set(K)
    assert data.logits is not None
    with pytest.raises(OscbenchError, match="not fitted yet"):
        method().score(data.inputs())
    with pytest.raises(UsageError, match="5 columns, the training rows had 4"):
        method().fit(data).score(feature_set(K + 1).inputs())
    holed = data.logits.copy()
    holed[11, 2] = np.inf
    with pytest.raises(UsageError, match="logits: row 11 holds NaN or infinity"):
        method().fit(data).score(Inputs(embedding=data.embedding, logits=holed, n_known=K))
    with pytest.raises(UsageError, match="needs logits"):
        method().fit(FeatureSet.from_arrays(embedding=data.embedding, labels=data.labels, n_known=K))
