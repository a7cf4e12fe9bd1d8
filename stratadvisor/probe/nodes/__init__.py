"""Probing several nodes together: a plan of rounds, who conducts it, what the pairs measured, and what that means."""
