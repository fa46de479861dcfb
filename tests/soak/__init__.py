"""Long runs of real processes under trouble on purpose, started by targets of their own in the Makefile."""
