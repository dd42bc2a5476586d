"""Text to what the model reads: phonemes, windows, token ids, and when each word is spoken."""
