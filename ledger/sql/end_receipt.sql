-- Guarantees: only the claim that has the job ends it, once; one that has run out may still end it until it passes on.
UPDATE receipts
SET state = %(state)s, expires_at = NULL, finished_at = ledger_now(), result = %(result)s, reason = %(reason)s
FROM pipelines
WHERE pipelines.name = %(pipeline)s AND receipts.pipeline_id = pipelines.id
  AND receipts.idempotency_key = %(key)s AND receipts.claim = %(claim)s AND receipts.state = 'in_work'
RETURNING receipts.finished_at
