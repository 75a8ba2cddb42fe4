"""Talks to each outside store, one module for each of them."""
