-- Guarantees: nobody will work these jobs any more. One that was worked, or is being worked, stays as it is.
INSERT INTO receipts (pipeline_id, idempotency_key, window_id, state, attempts, finished_at, reason)
SELECT %(pipeline_id)s, replaced.idempotency_key, replaced.window_id, 'superseded', 0, ledger_now(), %(reason)s
FROM replaced WHERE NOT replaced.owes
ORDER BY replaced.idempotency_key
ON CONFLICT (pipeline_id, idempotency_key) DO UPDATE
SET state = 'superseded', expires_at = NULL, finished_at = EXCLUDED.finished_at, reason = EXCLUDED.reason
WHERE receipts.state = 'failed' OR (receipts.state = 'in_work' AND receipts.expires_at <= ledger_now())
