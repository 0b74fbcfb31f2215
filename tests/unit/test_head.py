"""The head: composed, stored, recovered from logits against a network whose weights are known, or refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oscbench.artifacts import save_array
from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Head

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "posthoc_golden.npz", allow_pickle=False)
POOLED, LOGITS = GOLDEN["train_pooled"], GOLDEN["train_logits"]
NO_HEAD = r"SCALE needs the head: logits are no linear function of these features; add head_weight\.npy"


def golden_set(**changes: Any) -> FeatureSet:
    values = {"embedding": POOLED[:, :3], "pooled": POOLED, "logits": LOGITS, "labels": GOLDEN["train_labels"]}
    return FeatureSet.from_arrays(n_known=10, **(values | changes))


def test_two_linear_layers_are_one() -> None:
    head = Head.compose(GOLDEN["fc_weight"], GOLDEN["fc_bias"], GOLDEN["logit_weight"])
    assert head.weight.dtype == head.bias.dtype == np.float32
    np.testing.assert_allclose(head.weight, GOLDEN["weight"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(head.bias, GOLDEN["bias"], rtol=1e-6, atol=1e-7)


def test_a_head_is_recovered_from_the_logits() -> None:
    head, notes = golden_set().require_head("SCALE")
    np.testing.assert_allclose(head.weight, GOLDEN["weight"], atol=2e-6)
    np.testing.assert_allclose(head.bias, GOLDEN["bias"], atol=2e-6)
    assert [str(note) for note in notes] == ["SCALE: the head was recovered from the logits of 680 training rows"]


def test_a_stored_head_is_taken_as_it_is() -> None:
    head = Head(GOLDEN["weight"] + 1, GOLDEN["bias"])
    assert golden_set(head=head).require_head("SCALE") == (head, ())


def test_the_penultimate_layer_is_pooled_or_else_the_embedding() -> None:
    assert golden_set().penultimate is POOLED
    own = golden_set(embedding=POOLED, pooled=None)
    assert own.inputs().penultimate is POOLED
    np.testing.assert_allclose(own.require_head("SCALE")[0].weight, GOLDEN["weight"], atol=2e-6)


def test_too_few_rows_fit_anything_and_are_refused() -> None:
    """With no more rows than columns the training rows are hit exactly, and new ones missed by several logits."""
    rows = slice(0, 129)
    few = golden_set(
        embedding=POOLED[rows], pooled=POOLED[rows], logits=LOGITS[rows], labels=GOLDEN["train_labels"][rows]
    )
    with pytest.raises(UsageError, match=NO_HEAD + r" \(129 training rows cannot tell: 64 columns need 130\)"):
        few.require_head("SCALE")


def test_columns_that_never_fire_are_named() -> None:
    pooled = POOLED.copy()
    pooled[:, [3, 7]] = 0.0
    logits = (pooled.astype(np.float64) @ GOLDEN["weight"].T + GOLDEN["bias"]).astype(np.float32)
    head, notes = golden_set(pooled=pooled, logits=logits).require_head("SCALE")
    assert not head.weight[:, [3, 7]].any()
    live = np.setdiff1d(np.arange(64), [3, 7])
    np.testing.assert_allclose(head.weight[:, live], GOLDEN["weight"][:, live], atol=2e-6)
    assert str(notes[1]) == (
        "SCALE: 2 of 64 columns are 0 in all training rows and have weight 0 in the recovered head: 3, 7"
    )


def test_a_column_that_fires_only_in_rows_left_out_of_the_fit_is_found() -> None:
    """Those are every tenth row."""
    pooled = POOLED.copy()
    fired = np.flatnonzero(pooled[:, 3])
    pooled[np.setdiff1d(fired, fired[fired % 10 == 9][:2]), 3] = 0
    logits = (pooled.astype(np.float64) @ GOLDEN["weight"].T + GOLDEN["bias"]).astype(np.float32)
    head, _ = golden_set(pooled=pooled, logits=logits).require_head("SCALE")
    np.testing.assert_allclose(head.weight, GOLDEN["weight"], atol=1e-5)


def test_dependent_columns_and_logits_of_something_else_are_refused() -> None:
    twice = POOLED.copy()
    twice[:, 5] = 2 * twice[:, 6]
    with pytest.raises(UsageError, match=NO_HEAD + r" \(their columns depend on each other\)"):
        golden_set(pooled=twice).require_head("SCALE")
    bent = LOGITS + 0.01 * POOLED[:, :1] ** 2
    with pytest.raises(UsageError, match=NO_HEAD + r" \(rows left out of the fit are missed by up to"):
        golden_set(logits=bent).require_head("SCALE")
    holed = POOLED.copy()
    holed[40, 3] = np.nan
    with pytest.raises(UsageError, match="training features: row 40 holds NaN"):
        golden_set(pooled=holed).require_head("SCALE")
    with pytest.raises(UsageError, match="SCALE needs logits"):
        golden_set(logits=None).require_head("SCALE")


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (
            np.ones((10, 63)),
            np.ones(10),
            r"shape \(10, 63\); it needs 10 rows, one per logit, and 64 columns, as pooled",
        ),
        (np.ones((9, 64)), np.ones(9), r"shape \(9, 64\); it needs 10 rows"),
        (np.ones((10, 64)), np.ones(9), r"got shapes \(10, 64\) and \(9,\)"),
        (np.full((10, 64), np.nan), np.ones(10), "head_weight: row 0 holds NaN"),
    ],
)
def test_a_head_of_another_shape_is_refused(weight: np.ndarray, bias: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        golden_set(head=Head(weight.astype(np.float32), bias.astype(np.float32)))


def test_own_features_may_bring_a_head_without_bias(tmp_path: Path) -> None:
    for name, array in (("embedding", POOLED), ("labels", GOLDEN["train_labels"]), ("head_weight", GOLDEN["weight"])):
        save_array(tmp_path / f"{name}.npy", array)
    own = FeatureSet.load(tmp_path)
    assert own.head is not None
    assert own.head.bias.tolist() == [0.0] * 10
    bare = dataclasses.replace(own, head=None)
    save_array(tmp_path / "head_bias.npy", GOLDEN["bias"])
    biased = FeatureSet.load(tmp_path)
    assert len({features.fingerprint for features in (own, bare, biased)}) == 3  # the head decides results too
    save_array(tmp_path / "head_bias.npy", GOLDEN["bias"][:4])
    with pytest.raises(UsageError, match=rf"{tmp_path.name}: a head has weights"):
        FeatureSet.load(tmp_path)
