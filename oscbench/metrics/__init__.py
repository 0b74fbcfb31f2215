"""Metrics of oscbench."""
