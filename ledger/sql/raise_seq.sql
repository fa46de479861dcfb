-- Guarantees: only the holder of a window counts it on, each step once, however often it asks for the same one. No row for
-- a window whose number is another than the holder knows: it was put back under its feet, or the lease is lost.
UPDATE windows SET seq = %(seq)s
WHERE id = %(window_id)s AND lease_run_id = %(run_id)s AND fence = %(fence)s AND seq IN (%(before)s, %(seq)s)
RETURNING 1
