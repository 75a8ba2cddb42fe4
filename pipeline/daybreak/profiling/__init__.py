"""Measures how fast a training step is, and what binds it."""
