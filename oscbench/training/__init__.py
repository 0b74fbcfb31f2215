"""Training of oscbench."""
