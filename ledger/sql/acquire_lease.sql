-- Guarantees: at most one run gets a window; each take-over has a higher fence; the same run may ask again. Who only wants
-- an owed window does not get one that was completed a moment ago. The row is locked already, so that the clock is not
-- read before a wait.
UPDATE windows
SET fence = CASE WHEN lease_run_id = %(run_id)s THEN fence ELSE fence + 1 END,
    lease_run_id = %(run_id)s,
    lease_until = ledger_now() + %(lease)s
WHERE id = %(window_id)s
  AND (held_at IS NULL OR %(even_held)s)
  AND (completed_at IS NULL OR NOT %(only_owed)s)
  AND (lease_until IS NULL OR lease_until <= ledger_now() OR lease_run_id = %(run_id)s)
RETURNING fence, objects_checked_at IS NOT NULL, seq
