"""Runs a bundle briefly and compares it with its prediction."""
