-- Guarantees: a plan is applied, its run completed and its window given back all at once, in a statement that sees nothing
-- of the window unfinished. What a dispatch has completed, or not, stays as it was.
WITH completed AS (
    UPDATE runs SET outcome = 'completed', finished_at = ledger_now()
    WHERE id = %(run_id)s AND outcome IS NULL
      AND NOT EXISTS (SELECT 1 FROM payload_parts WHERE window_id = %(window_id)s)
    RETURNING id, finished_at
), applied AS (
    UPDATE plans SET state = 'applied', ended_at = completed.finished_at, run_id = completed.id
    FROM completed WHERE plans.id = %(plan_id)s AND plans.state = 'applying'
), given_back AS (
    UPDATE windows SET lease_run_id = NULL, lease_until = NULL FROM completed WHERE windows.id = %(window_id)s
)
SELECT finished_at FROM completed
