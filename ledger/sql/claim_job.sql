-- Claims a job for one worker and counts the attempt; a repeat with the same claim counts once, and a claim that has not
-- run out keeps everybody else away. Whoever held it before is fenced: its claim is no longer the row's. The row is locked
-- already, so that the clock is not read before a wait.
UPDATE jobs SET status = 'processing', claim = %(claim)s, heartbeat_at = ledger_now(), relay_at = ledger_now(),
    expires_at = ledger_now() + %(lease)s::interval, started_at = coalesce(started_at, ledger_now()),
    attempts = attempts + CASE WHEN status = 'processing' AND claim = %(claim)s THEN 0 ELSE 1 END
WHERE id = %(id)s AND pipeline_id = (SELECT id FROM pipelines WHERE name = %(pipeline)s)
  AND (status = 'pending' AND attempts < %(attempts_max)s
       OR status = 'processing' AND (claim = %(claim)s OR expires_at <= ledger_now() AND attempts < %(attempts_max)s))
RETURNING *
