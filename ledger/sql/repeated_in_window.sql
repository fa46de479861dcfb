-- The finished entries of a window that more than one try may have carried to the queue: how many tries were taken, how
-- far they lie apart, and the receipts. The second tries of all windows are few, and have an index of their own.
SELECT entries.id, entries.idempotency_key, destinations.queue, count(*) FILTER (WHERE outcome <> 'unknown'),
       extract(epoch FROM max(marked_at) - min(marked_at))::float8,
       (SELECT count(*) FROM receipts WHERE receipts.pipeline_id = %(pipeline_id)s
        AND receipts.idempotency_key = entries.idempotency_key AND receipts.state = 'completed')
FROM entries
JOIN destinations ON destinations.id = entries.destination_id
JOIN all_attempts ON all_attempts.entry_id = entries.id AND outcome IN ('unknown', 'accepted', 'received', 'vouched')
WHERE entries.id IN (SELECT entry_id FROM attempts WHERE number > 1 UNION ALL SELECT entry_id FROM open_attempts)
  AND entries.window_id = %(window_id)s AND entries.void_reason IS NULL
  AND NOT EXISTS (SELECT 1 FROM payload_parts
                  WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = entries.id)
GROUP BY entries.id, entries.idempotency_key, destinations.queue
HAVING count(*) > 1
ORDER BY entries.id
LIMIT %(limit)s
