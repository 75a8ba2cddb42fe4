"""Recommends items that a shop's customers will buy tomorrow, learned from invoice lines."""
