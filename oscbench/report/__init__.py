"""Report of oscbench."""
