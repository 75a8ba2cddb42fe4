"""A year of nights on spot machines, replayed. Pure."""
