"""Long runs under random trouble, started by targets of their own in the Makefile."""
