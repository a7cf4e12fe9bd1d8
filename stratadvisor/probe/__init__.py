"""Looks at a machine; one file per thing looked at."""
