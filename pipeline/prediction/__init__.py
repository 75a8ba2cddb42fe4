"""What a night will take and cost, with intervals. Pure, but for reading the ledger."""
