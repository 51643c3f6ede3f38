"""The wire dialects and their connection handlers."""
