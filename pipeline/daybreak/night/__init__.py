"""Opens a night, and closes it: its folder and deadline at one end, its entry in the ledger at the other."""
