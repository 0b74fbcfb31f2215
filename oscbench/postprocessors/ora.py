"""ORA: the angle between a row and its image on the farthest decision boundary."""

from __future__ import annotations

import numpy as np

from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.fdbd import weight_gaps
from oscbench.postprocessors.posthoc import Array, Rows, SharedFit, TrainingRows


@POSTPROCESSORS.register(
    "ora",
    label="ORA",
    paper="openreview ul5mlXrLZb",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "Seen from the middle of the class means, a known row is at a wide angle to its class's farthest boundary.",
        "max_c angle(x, x - t_c (w_y - w_c)) / pi, x = z - mean of class means, t_c = (l_y - l_c) / |w_y - w_c|^2",
        "Features whose length says nothing: an angle does not change with it.",
        "Class means that do not surround their middle, as with few classes.",
    ),
)
class Ora(SharedFit):
    """Largest relative angle to a decision boundary of the predicted class (NeurIPS 2025).

    By scalars, |x|^2 and x . (w_y - w_c), without a P-dimensional loop. Class means are those of training rows; the
    authors' program takes them from the validation set that it also tests on.
    """

    name = "ora"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        self._weight, _ = rows.head
        means, there = rows.class_means(without="they are left out")
        self._centre = means[there].mean(axis=0)
        self._gaps = weight_gaps(self._weight)

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        logits, predicted = rows.logits, rows.predicted[:, None].astype(np.intp)
        centred = rows.features() - self._centre
        length = np.linalg.norm(centred, axis=1)[:, None]
        outputs = (centred / np.maximum(length, np.finfo(np.float64).tiny)) @ self._weight.T
        # everything in units of |x|: angles do not change with it
        gaps = self._gaps[predicted[:, 0]]
        along = (np.take_along_axis(outputs, predicted, axis=1) - outputs) / gaps  # cosine of x and w_y - w_c
        margins = np.take_along_axis(logits, predicted, axis=1) - logits
        step = margins / gaps / np.maximum(length, np.finfo(np.float64).tiny)
        step = np.minimum(step, 1e150)  # a row at the centre has no direction; its square stays finite
        angle = np.arctan2(step * np.sqrt(np.maximum(1 - along**2, 0.0)), 1 - step * along)
        np.put_along_axis(angle, predicted, -np.inf, axis=1)
        best = angle.max(axis=1) / np.pi if logits.shape[1] > 1 else np.zeros(len(rows))
        return np.repeat(best[:, None], len(self.settings), axis=1)
