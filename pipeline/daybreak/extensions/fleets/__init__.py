"""Shares machines and dollars of an evening among the models of a fleet."""
