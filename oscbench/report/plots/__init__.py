"""Figures as PNG and PDF, a file for each kind; only these files know matplotlib."""
