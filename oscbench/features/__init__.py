"""Features of oscbench."""
