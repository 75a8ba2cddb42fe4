"""Gives a home to a notebook: its nights as data frames, and its versions to predict by."""
