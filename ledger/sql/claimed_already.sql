-- Which of these occurrences have a claim, by their place in the list, from 0. One probe of the key each: many records
-- may share one booking time, so a range of it may hold far more claims than were asked for.
SELECT sighted.place - 1, claim.entry_id
FROM unnest(%(booking_ns)s::bigint[], %(record_ids)s::bytea[])
     WITH ORDINALITY AS sighted (booking_ns, record_id, place)
CROSS JOIN LATERAL (
    SELECT claims.entry_id FROM claims
    WHERE claims.booking_ns = sighted.booking_ns AND claims.record_id = sighted.record_id
      AND claims.pipeline_id = %(pipeline_id)s
    ORDER BY claims.generation DESC LIMIT 1
) AS claim
