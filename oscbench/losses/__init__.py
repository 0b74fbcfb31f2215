"""Losses of oscbench."""
