-- Guarantees: of all workers that ask for one job at once, exactly one gets it, and only while its claim has not run out;
-- what was worked or replaced is never given out again. Each claim counts as an attempt, once, also when it asks again.
-- A first claim that had to wait, for another that was taken back in the end, says that it was late: its clock was read
-- before.
WITH promise AS (
    SELECT windows.pipeline_id, entries.window_id
    FROM entries
    JOIN windows ON windows.id = entries.window_id
    JOIN pipelines ON pipelines.id = windows.pipeline_id
    WHERE pipelines.name = %(pipeline)s AND entries.idempotency_key = %(key)s AND entries.void_reason IS NULL
)
INSERT INTO receipts AS receipt
    (pipeline_id, idempotency_key, window_id, state, claim, worker, attempts, claimed_at, expires_at)
SELECT pipeline_id, %(key)s, window_id, 'in_work', %(claim)s, %(worker)s, 1, ledger_now(), ledger_now() + %(lease)s
FROM promise
ON CONFLICT (pipeline_id, idempotency_key) DO UPDATE
SET state = 'in_work', claim = %(claim)s, worker = %(worker)s, finished_at = NULL, reason = NULL,
    attempts = receipt.attempts + CASE WHEN receipt.claim = %(claim)s THEN 0 ELSE 1 END,
    claimed_at = ledger_now(), expires_at = ledger_now() + %(lease)s
WHERE receipt.state = 'failed'
   OR (receipt.state = 'in_work' AND (receipt.expires_at <= ledger_now() OR receipt.claim = %(claim)s))
RETURNING expires_at, attempts, ledger_now() - claimed_at > interval '100 milliseconds' AS late
