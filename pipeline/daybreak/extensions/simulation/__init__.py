"""Replays a year of nights on spot machines; pure functions, without a file or a service."""
