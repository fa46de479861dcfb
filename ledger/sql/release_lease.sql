-- Guarantees: only the holder gives a window back.
UPDATE windows SET lease_run_id = NULL, lease_until = NULL
WHERE id = %(window_id)s AND lease_run_id = %(run_id)s AND fence = %(fence)s
