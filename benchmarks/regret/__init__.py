"""Regret: how much later the recommended strategy reaches a loss than the best one does, on clusters of the lab.

    python -m benchmarks.regret run      measure what is missing, one line of runs.csv for each run
    python -m benchmarks.regret page     write docs/regret.md and its plot from runs.csv

See ``docs/regret.md``.
"""
