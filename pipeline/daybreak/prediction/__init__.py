"""Predicts how long a night takes and what it costs, with intervals; pure except for reading the ledger."""
