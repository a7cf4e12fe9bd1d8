"""``python -m stratadvisor``."""

from stratadvisor.cli import main

if __name__ == "__main__":
    main()
