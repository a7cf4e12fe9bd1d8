"""Training-side code; a bundle carries a copy of what it needs (torch and the standard library only)."""
