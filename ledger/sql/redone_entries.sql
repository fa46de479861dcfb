-- The live entries of a window that repeat occurrences on a person's wish, with how many of the jobs that hold the same
-- occurrences were worked to the end.
WITH redone AS MATERIALIZED (
    SELECT id, idempotency_key, generation, records_n FROM entries
    WHERE window_id = %(window_id)s AND generation > 0 AND void_reason IS NULL
), again AS MATERIALIZED (
    SELECT claims.entry_id, claims.booking_ns, claims.record_id FROM claims JOIN redone ON redone.id = claims.entry_id
    WHERE claims.booking_ns BETWEEN %(start_ns)s AND %(end_ns)s AND claims.pipeline_id = %(pipeline_id)s
), worked AS (
    SELECT again.entry_id, count(DISTINCT receipts.idempotency_key) AS receipts
    FROM again
    JOIN claims AS any_time ON any_time.booking_ns = again.booking_ns AND any_time.record_id = again.record_id
         AND any_time.pipeline_id = %(pipeline_id)s
    JOIN entries AS twin ON twin.id = any_time.entry_id
    JOIN receipts ON receipts.pipeline_id = %(pipeline_id)s AND receipts.idempotency_key = twin.idempotency_key
    WHERE receipts.state = 'completed'
    GROUP BY again.entry_id
)
SELECT redone.id, redone.idempotency_key, redone.generation, redone.records_n, coalesce(worked.receipts, 0)
FROM redone
LEFT JOIN worked ON worked.entry_id = redone.id
ORDER BY redone.id
