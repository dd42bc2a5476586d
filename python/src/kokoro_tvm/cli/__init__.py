"""Command lines: the outermost layer, which nothing imports."""
