"""Predict known runs and print the error beside each: how far to trust the time model."""
