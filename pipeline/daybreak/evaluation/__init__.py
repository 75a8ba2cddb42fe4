"""Held-out scores of both models, and the smoke test of a packaged version."""
