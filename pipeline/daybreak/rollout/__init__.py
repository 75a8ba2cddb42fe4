"""Promotion and rollback as one transaction over ledger, registry and serving, and the audit of both."""
