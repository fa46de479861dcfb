"""The face of the product: command line and wiring. No rule lives here."""
