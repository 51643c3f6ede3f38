"""Coverage-guided fuzzing of the code that parses bytes from a network."""
