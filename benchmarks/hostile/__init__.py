"""Inputs of strangers through the real command line: what is said, what is written, what it costs."""
