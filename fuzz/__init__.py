"""Coverage-guided fuzzing of everything that reads what a stranger wrote; ``python -m fuzz --help``.

Not part of the package. Needs atheris (PyPI) for new inputs; what was found stays in ``fuzz/corpus`` and is run by the
tests without it.
"""
