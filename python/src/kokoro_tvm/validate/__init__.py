"""Comparisons of what was compiled with the reference."""
