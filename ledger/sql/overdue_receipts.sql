-- The sent entries of a window that no consumer has worked to its end for so long, after the entry given.
SELECT entries.id, entries.idempotency_key, destinations.queue, receipts.state, receipts.attempts,
       min(attempts.answered_at)
FROM entries
JOIN destinations ON destinations.id = entries.destination_id
JOIN attempts ON attempts.entry_id = entries.id AND attempts.outcome IN ('accepted', 'received', 'vouched')
LEFT JOIN receipts ON receipts.pipeline_id = %(pipeline_id)s AND receipts.idempotency_key = entries.idempotency_key
WHERE entries.window_id = %(window_id)s AND entries.void_reason IS NULL AND entries.id > %(after)s
  AND attempts.answered_at <= ledger_now() - %(within)s::interval
  AND coalesce(receipts.state, '') NOT IN ('completed', 'superseded')
GROUP BY entries.id, entries.idempotency_key, destinations.queue, receipts.state, receipts.attempts
ORDER BY entries.id
LIMIT %(limit)s
