-- Guarantees: a reconcile ends with its books, what it verified, and the window given back, all at once.
WITH ended AS (
    UPDATE runs SET outcome = 'completed', finished_at = ledger_now()
    WHERE id = %(run_id)s AND outcome IS NULL
    RETURNING finished_at
)
UPDATE windows SET lease_run_id = NULL, lease_until = NULL, verified_at = ended.finished_at,
    verified_evaluated = %(evaluated)s, verified_due = %(due)s, verified_claimed = %(already_claimed)s + %(claimed)s
FROM ended WHERE windows.id = %(window_id)s
RETURNING ended.finished_at
