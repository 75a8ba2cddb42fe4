"""Looks after records, bytes and versions of a home: finds damage, repairs it, restores a lost ledger."""
