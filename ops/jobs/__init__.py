"""Long-running work: what may be asked for, how each kind is done, and the workers that do it."""
