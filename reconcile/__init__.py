"""Back to the source: what the ledger says against what is there."""
