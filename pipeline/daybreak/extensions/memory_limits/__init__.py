"""Follows a memory limit that moves while a worker trains."""
