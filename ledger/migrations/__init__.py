"""The history of the ledger's schema."""
