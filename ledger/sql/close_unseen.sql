-- Guarantees: after a pass that looked at everything of the window, what it did not see again is no longer open. What
-- was sent twice stays sent twice, so duplicates wait for a person.
UPDATE findings SET state = 'closed', closed_at = ledger_now()
WHERE window_id = %(window_id)s AND state = 'open' AND kind <> 'duplicate' AND kind <> ALL(%(unless)s::text[])
  AND last_run_id IS DISTINCT FROM %(run_id)s
