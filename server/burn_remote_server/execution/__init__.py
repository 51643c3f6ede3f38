"""Execution of sessions: engine, interpreter, tensor table, worker threads and outbox."""
