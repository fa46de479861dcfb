-- Guarantees: after a run that judged every record of the window, what it did not see again is no longer open.
-- A redo that its queue has refused is seen by nobody again: its records still have their first claim. It waits for a
-- person, or for the same to be sent after all.
UPDATE findings SET state = 'closed', closed_at = ledger_now()
WHERE window_id = %(window_id)s AND state = 'open'
  AND kind IN ('bad_record', 'unfinished', 'window_not_dispatched')
  AND last_run_id IS DISTINCT FROM %(run_id)s
  AND NOT (kind = 'unfinished' AND cause = 'refused'
           AND EXISTS (SELECT 1 FROM entries AS refused
                       WHERE refused.id = findings.entry_id AND refused.generation > 0
                         AND refused.void_reason IS NOT NULL
                         AND NOT EXISTS (SELECT 1 FROM entries AS live
                                         WHERE live.idempotency_key = refused.idempotency_key
                                           AND live.void_reason IS NULL)))
