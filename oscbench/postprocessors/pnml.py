"""pNML: the regret of a learner that may also learn from the row it is asked about."""

from __future__ import annotations

import numpy as np

from oscbench.numerics.softmax import log_softmax
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.mahalanobis import EIGENVALUE_CUT
from oscbench.postprocessors.posthoc import Array, Rows, SharedFit, TrainingRows


@POSTPROCESSORS.register(
    "pnml",
    label="pNML",
    paper="arXiv:2110.09246",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="classes",
    about=About(
        "An answer is worth little in directions that training rows lack, where a single row could change it.",
        "-log_K sum_c p_c / (p_c + (1 - p_c) p_c^g), p = softmax(W x + b), g = q / (1 + q), q = x' (X' X)^+ x",
        "Unknowns in directions that the training rows hardly use.",
        "Many training rows in all directions: q is then 0 for everything.",
    ),
)
class Pnml(SharedFit):
    """Minus the regret of the predictive normalised maximum likelihood learner (Bibas et al. 2021).

    Probabilities are those of the unit row, which has no length to be sure by. The inverse cuts eigenvalues below
    P * 1.2e-7 of the largest.
    """

    name = "pnml"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        self._weight, self._bias = rows.head
        width = rows.stored().shape[1]
        gram = np.zeros((width, width))
        for _, block in rows.blocks(width):
            unit = block.unit_features()
            gram += unit.T @ unit
        values, vectors = np.linalg.eigh(gram)
        kept = values > width * EIGENVALUE_CUT * values[-1]
        self._whitening = vectors[:, kept] / np.sqrt(values[kept])

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        units = rows.unit_features()
        white = units @ self._whitening
        q = np.einsum("nr,nr->n", white, white)[:, None]
        log_p = log_softmax(units @ self._weight.T + self._bias)
        with np.errstate(over="ignore"):  # a probability of nearly 0 becomes infinitely much larger: its share is 0
            doubts = -np.expm1(log_p) * np.exp(-log_p / (1.0 + q))  # (1 - p) p^(g - 1); a share is 1 / (1 + doubt)
        beyond = 1.0 / (1.0 + doubts)
        sure = np.argmax(log_p, axis=1)[:, None]
        of_sure = np.take_along_axis(doubts, sure, axis=1)
        np.put_along_axis(
            beyond, sure, -of_sure / (1.0 + of_sure), axis=1
        )  # its share less 1, which would hide the rest
        regret = np.log1p(beyond.sum(axis=1)) / np.log(max(2, rows.n_known))
        return np.repeat(-regret[:, None], len(self.settings), axis=1)
