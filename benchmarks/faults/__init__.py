"""Faults that are really injected: what was seen, and what should have been. ``python -m benchmarks.faults``."""
