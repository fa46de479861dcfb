"""A deterministic simulation: the product's own code on a real PostgreSQL, in a made-up world, under one seed."""
