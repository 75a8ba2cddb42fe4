"""Copper clusters: a network that stands in for the forces of a reference potential."""
