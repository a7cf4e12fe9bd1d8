"""Reads, checks, walks and draws the flowchart in rules/."""
