"""Calibrating a GPU: what is measured (measuring.py), and the constants that are fitted to it (fitting.py)."""
