"""Writes what the version that serves predicts for the next day."""
