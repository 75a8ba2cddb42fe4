"""Statistics of two arms and of drift. Pure."""
