-- Guarantees: runs of this window that still count as running, but lost it to the run that now holds it, are ended.
UPDATE runs SET outcome = 'failed', finished_at = ledger_now(),
    error = 'abandoned: the run stopped renewing its lease, and another run took the window over'
WHERE window_id = %(window_id)s AND id <> %(run_id)s AND outcome IS NULL
