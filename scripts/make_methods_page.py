"""Writes docs/methods.md, the page on all algorithms and losses: ``python scripts/make_methods_page.py``."""

from __future__ import annotations

from pathlib import Path

from oscbench.artifacts import write_text
from oscbench.report.methods import all_methods, methods_page

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"


def main() -> None:
    """Writes the page, without what plug-ins brought."""
    write_text(PAGE, methods_page(all_methods(plugins=False)))
    print(PAGE.relative_to(Path(__file__).parents[1]))


if __name__ == "__main__":
    main()
