"""The two ends of a night: `open` lays out folder and deadline, `close` writes the entry of the ledger."""
