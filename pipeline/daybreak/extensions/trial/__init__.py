"""Tries the code of a team on one day and one batch."""
