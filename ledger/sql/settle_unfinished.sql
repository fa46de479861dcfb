-- Guarantees: an open finding of an entry that is finished by now says so: repaired when it was sent, closed when void.
UPDATE findings
SET state = CASE WHEN entries.void_reason IS NULL THEN 'repaired' ELSE 'closed' END,
    repair = CASE WHEN entries.void_reason IS NULL THEN 'completed' END,
    closed_at = CASE WHEN entries.void_reason IS NOT NULL THEN ledger_now() END,
    last_run_id = %(run_id)s, last_seen_at = ledger_now()
FROM entries
WHERE findings.window_id = %(window_id)s AND findings.kind = 'unfinished' AND findings.state = 'open'
  AND findings.cause <> 'refused' AND entries.id = findings.entry_id
  AND NOT EXISTS (SELECT 1 FROM payload_parts
                  WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = entries.id)
