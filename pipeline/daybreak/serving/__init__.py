"""Runs a version in a process of its own, which answers requests."""
