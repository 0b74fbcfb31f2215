"""Protocols of oscbench."""
