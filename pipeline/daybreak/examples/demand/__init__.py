"""Meters: what each will read in each hour of a day, between which bounds."""
