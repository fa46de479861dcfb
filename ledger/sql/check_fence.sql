-- Guarantees: whoever gets a row back still holds the window until this transaction ends; a take-over waits for it.
SELECT 1 FROM windows
WHERE id = %(window_id)s AND lease_run_id = %(run_id)s AND fence = %(fence)s AND lease_until > ledger_now()
FOR SHARE
