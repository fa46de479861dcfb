-- The live entries of a window that repeat occurrences on a person's wish, with how many of the jobs that hold the same
-- occurrences were worked to the end.
SELECT entries.id, entries.idempotency_key, entries.generation, entries.records_n,
       (SELECT count(DISTINCT receipts.idempotency_key)
        FROM claims AS again
        JOIN claims AS any_time ON any_time.booking_ns = again.booking_ns AND any_time.record_id = again.record_id
             AND any_time.pipeline_id = again.pipeline_id
        JOIN entries AS twin ON twin.id = any_time.entry_id
        JOIN receipts ON receipts.pipeline_id = %(pipeline_id)s AND receipts.idempotency_key = twin.idempotency_key
        WHERE again.booking_ns BETWEEN %(start_ns)s AND %(end_ns)s AND again.pipeline_id = %(pipeline_id)s
          AND again.entry_id = entries.id AND receipts.state = 'completed')
FROM entries
WHERE entries.window_id = %(window_id)s AND entries.generation > 0 AND entries.void_reason IS NULL
ORDER BY entries.id
LIMIT %(limit)s
