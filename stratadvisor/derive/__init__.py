"""Facts: named quantities computed from a profile, a workload and the candidates."""
