-- Guarantees: a run ends once.
UPDATE runs SET outcome = %(outcome)s, error = %(error)s, finished_at = ledger_now()
WHERE id = %(run_id)s AND outcome IS NULL
