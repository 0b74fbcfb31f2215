"""Data of oscbench."""
