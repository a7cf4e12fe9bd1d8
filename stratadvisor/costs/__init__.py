"""Formulas for bytes and seconds; each function cites where it comes from."""
