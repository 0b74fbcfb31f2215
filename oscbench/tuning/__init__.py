"""Tuning of oscbench.

What is named here brings the post-processors and torch with it, so it is loaded when asked for: reading a table of
trials must not take seconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oscbench.tuning.grid import best_one_by_one, evaluate_grid, grid_answer, rate_table

__all__ = ["best_one_by_one", "evaluate_grid", "grid_answer", "rate_table"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oscbench.tuning import grid

    return getattr(grid, name)
