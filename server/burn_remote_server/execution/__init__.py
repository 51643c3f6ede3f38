"""Execution of sessions: engine, interpreter, worker threads and outbox."""
