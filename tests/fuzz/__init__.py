"""Coverage-guided fuzzing of what reads bytes from a network."""
