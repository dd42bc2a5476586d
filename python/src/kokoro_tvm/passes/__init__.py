"""Relax passes and the one pipeline they form."""
