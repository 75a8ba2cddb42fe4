"""Recommends to a shop's customers what they will buy tomorrow, from the lines of its invoices."""
