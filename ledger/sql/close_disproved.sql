-- Guarantees: after a run that judged every record of the window, what it did not see again is no longer open.
UPDATE findings SET state = 'closed', closed_at = ledger_now()
WHERE window_id = %(window_id)s AND state = 'open'
  AND kind IN ('bad_record', 'unfinished', 'window_not_dispatched')
  AND last_run_id IS DISTINCT FROM %(run_id)s
