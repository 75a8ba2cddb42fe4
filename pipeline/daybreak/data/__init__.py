"""Brings in the rows of each day, validates and cleans them, and prepares the arrays that training reads."""
