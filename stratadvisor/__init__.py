"""stratadvisor measures a cluster, decides how to train on it, and checks what it predicted."""

__version__ = "0.1.0"
