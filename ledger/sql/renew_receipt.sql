-- Guarantees: only the claim that has the job renews it; one that has run out may still be renewed until it passes on.
UPDATE receipts SET expires_at = ledger_now() + %(lease)s
FROM pipelines
WHERE pipelines.name = %(pipeline)s AND receipts.pipeline_id = pipelines.id
  AND receipts.idempotency_key = %(key)s AND receipts.claim = %(claim)s AND receipts.state = 'in_work'
RETURNING expires_at
