"""Versions in MLflow: their files, aliases, descriptions and lineage."""
