-- The occurrences of a window that are claimed, in the order of the key, a bounded number after the one given: each with
-- its last generation, the entry that holds it, whether that is one of this window's (on the hour it may be a neighbour's)
-- and whether it is unfinished, the receipts of all its jobs, and whether one of them may have a receipt that a ledger put
-- back to an earlier state has forgotten: what was opened before that may have been sent and worked before it, whatever is
-- known of its tries.
WITH restored AS MATERIALIZED (
    SELECT restored_at AS at FROM pipelines WHERE id = %(pipeline_id)s
), latest AS MATERIALIZED (
    SELECT DISTINCT ON (booking_ns, record_id) booking_ns, record_id, generation, entry_id
    FROM claims
    WHERE pipeline_id = %(pipeline_id)s AND booking_ns BETWEEN %(start_ns)s AND %(end_ns)s
      AND (booking_ns, record_id) > (%(after_ns)s, %(after_id)s)
      AND (%(any_record)s OR record_id = ANY(%(record_ids)s::bytea[]))
    ORDER BY booking_ns, record_id, generation DESC
    LIMIT %(limit)s
)
SELECT latest.booking_ns, latest.record_id, latest.generation, latest.entry_id, entries.group_digest,
       coalesce(entries.window_id = (SELECT id FROM windows
                                     WHERE pipeline_id = %(pipeline_id)s AND start_s = %(start_s)s), false),
       EXISTS (SELECT 1 FROM payload_parts
               WHERE payload_parts.window_id = entries.window_id AND payload_parts.entry_id = entries.id),
       coalesce((SELECT string_agg(receipts.state, ',' ORDER BY claims.generation)
                 FROM claims
                 JOIN entries AS twin ON twin.id = claims.entry_id
                 JOIN receipts ON receipts.pipeline_id = claims.pipeline_id
                      AND receipts.idempotency_key = twin.idempotency_key
                 WHERE claims.booking_ns = latest.booking_ns AND claims.record_id = latest.record_id
                   AND claims.pipeline_id = %(pipeline_id)s), ''),
       restored.at IS NOT NULL AND EXISTS (
           SELECT 1
           FROM claims
           JOIN entries AS twin ON twin.id = claims.entry_id AND twin.void_reason IS NULL
           LEFT JOIN receipts ON receipts.pipeline_id = claims.pipeline_id
                AND receipts.idempotency_key = twin.idempotency_key
           WHERE claims.booking_ns = latest.booking_ns AND claims.record_id = latest.record_id
             AND claims.pipeline_id = %(pipeline_id)s
             AND coalesce(receipts.state, '') NOT IN ('completed', 'superseded')
             AND coalesce(receipts.claimed_at, restored.at) <= restored.at
             AND twin.opened_at <= restored.at
             AND EXISTS (SELECT 1 FROM all_attempts WHERE all_attempts.entry_id = twin.id))
FROM latest
CROSS JOIN restored
JOIN entries ON entries.id = latest.entry_id
ORDER BY latest.booking_ns, latest.record_id
