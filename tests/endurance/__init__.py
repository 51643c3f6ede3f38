"""Real servers and clients in real processes that come, work, crash and go."""
