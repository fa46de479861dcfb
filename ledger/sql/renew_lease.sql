-- Guarantees: only the holder's lease grows, and only while it has not run out.
UPDATE windows SET lease_until = ledger_now() + %(lease)s
WHERE id = %(window_id)s AND lease_run_id = %(run_id)s AND fence = %(fence)s AND lease_until > ledger_now()
RETURNING 1
