"""Joins machines of two kinds in one job, where machines of one kind would cost more."""
