"""Vertex AI as a place to run jobs."""
