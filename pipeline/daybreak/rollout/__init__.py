"""Promotion and rollback as one transaction over ledger, registry and whatever serves, and their audit."""
