"""GradNorm: the size of the gradient of the head, in closed form."""

from __future__ import annotations

import numpy as np

from oscbench.numerics.softmax import softmax
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Posthoc, Rows, TrainingRows


@POSTPROCESSORS.register(
    "gradnorm",
    label="GradNorm",
    paper="arXiv:2110.00218",
    needs={"logits", "pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "The gradient towards equal probabilities is long for sure predictions from strong features.",
        "|K p - 1|_1 |z|_1",
        "ReLU networks and unknowns with weak features.",
        "Signed features; unknowns with strong features.",
    ),
)
class GradNorm(Posthoc):
    """L1 norm of the head's gradient of the cross entropy to the uniform distribution (Huang et al. 2021).

    The gradient is the outer product of K p - 1 and z (times 1 / K in a mean), so no backward pass is needed; the
    originals run one for every row.
    """

    name = "gradnorm"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        rows.note_signed_features()

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        spread = np.abs(rows.n_known * softmax(rows.logits) - 1).sum(axis=1)
        norm = np.abs(rows.features()).sum(axis=1)
        return np.repeat((spread * norm)[:, None], len(self.settings), axis=1)
