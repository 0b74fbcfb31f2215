"""Tuning of oscbench."""

from oscbench.tuning.grid import HYPERPARAMETERS, best_one_by_one, evaluate_grid

__all__ = ["HYPERPARAMETERS", "best_one_by_one", "evaluate_grid"]
