"""``python -m oscbench``."""

from oscbench.cli import main

main()
