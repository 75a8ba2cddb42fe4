"""Trains a model through preemptions, and finishes before the deadline."""
