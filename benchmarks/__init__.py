"""Measurements, side by side in one run, and the demo."""
