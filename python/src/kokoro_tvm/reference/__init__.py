"""The oracle: eager kokoro, its checkpoints and its float64 trace."""
