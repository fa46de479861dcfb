"""Jobs over HTTP, while their workers are killed and paused."""
