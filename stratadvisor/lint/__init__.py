"""Configurations of other frameworks: keys that are unknown, gone, ignored or at odds with each other."""
