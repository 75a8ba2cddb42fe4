"""Writes a home for a model of data that it surveys."""
