"""Everything that speaks: no PyTorch, no compiler."""
