-- Of these occurrences, by their place in the list, from 0, those whose last job was worked to its end, or will never be worked
-- because a redo has replaced it, with that job's entry and which of the two it is.
SELECT sighted.place - 1, entries.id, receipts.state
FROM unnest(%(booking_ns)s::bigint[], %(record_ids)s::bytea[])
     WITH ORDINALITY AS sighted (booking_ns, record_id, place)
CROSS JOIN LATERAL (
    SELECT claims.entry_id FROM claims
    WHERE claims.booking_ns = sighted.booking_ns AND claims.record_id = sighted.record_id
      AND claims.pipeline_id = %(pipeline_id)s
    ORDER BY claims.generation DESC LIMIT 1
) AS claim
JOIN entries ON entries.id = claim.entry_id
JOIN receipts ON receipts.pipeline_id = %(pipeline_id)s AND receipts.idempotency_key = entries.idempotency_key
WHERE receipts.state IN ('completed', 'superseded')
