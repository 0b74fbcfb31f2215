"""The page of a report: one file that shows everything and needs nothing else."""

from oscbench.report.page.build import MOST_BYTES, build_page

__all__ = ["MOST_BYTES", "build_page"]
