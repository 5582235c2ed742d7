"""Thin click commands; each imports what it needs inside the function."""
