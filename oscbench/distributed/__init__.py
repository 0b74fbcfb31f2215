"""Distributed of oscbench."""
