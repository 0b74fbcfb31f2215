"""Numerics of oscbench."""
