-- Guarantees: whoever gets a row back still holds the window until this transaction ends; a take-over waits for it. The
-- clock is read when the row is locked, not before a wait for it. Says also why a person may have had it held meanwhile.
WITH held AS MATERIALIZED (
    SELECT lease_until, held_reason, held_kind FROM windows
    WHERE id = %(window_id)s AND lease_run_id = %(run_id)s AND fence = %(fence)s FOR SHARE
)
SELECT held_reason, held_kind FROM held WHERE lease_until > ledger_now()
