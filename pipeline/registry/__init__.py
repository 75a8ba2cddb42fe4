"""Versions in MLflow: their files, aliases, description and lineage."""
