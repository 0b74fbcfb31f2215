"""The verbs as functions; ``import oscbench`` offers them, and the command line is a thin layer over them."""
