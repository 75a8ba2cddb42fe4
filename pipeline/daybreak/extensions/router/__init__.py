"""Answers users: an HTTP server that runs versions and logs what it shows."""
