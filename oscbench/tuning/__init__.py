"""Tuning of oscbench."""
