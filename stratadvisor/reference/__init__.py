"""Reference pages and the manual page, generated from the code: ``python -m stratadvisor.reference``."""
