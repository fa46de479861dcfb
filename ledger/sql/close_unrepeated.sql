-- Guarantees: a possible duplicate is no longer open once at most one try with its idempotency key can have arrived.
UPDATE findings SET state = 'closed', closed_at = ledger_now()
FROM entries
WHERE entries.id = ANY(%(ids)s::uuid[]) AND findings.pipeline_id = %(pipeline_id)s AND findings.kind = 'duplicate'
  AND findings.cause = 'resent' AND findings.subject = entries.idempotency_key AND findings.state = 'open'
  AND (SELECT count(*) FROM same_promises
       JOIN all_attempts ON all_attempts.entry_id = same_promises.same_id AND outcome IN ('unknown', 'accepted', 'received', 'vouched')
       WHERE same_promises.entry_id = entries.id) < 2
