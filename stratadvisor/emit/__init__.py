"""Renders a plan into files that start."""
