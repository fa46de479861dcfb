-- Which of these occurrences have no claim, or one for another content, by their place in the list, from 0. Of several
-- generations the last one counts.
SELECT sighted.place - 1, claim.entry_id
FROM unnest(%(booking_ns)s::bigint[], %(record_ids)s::bytea[], %(fingerprints)s::bigint[])
     WITH ORDINALITY AS sighted (booking_ns, record_id, fingerprint, place)
LEFT JOIN LATERAL (
    SELECT claims.entry_id, claims.fingerprint FROM claims
    WHERE claims.booking_ns = sighted.booking_ns AND claims.record_id = sighted.record_id
      AND claims.pipeline_id = %(pipeline_id)s
    ORDER BY claims.generation DESC LIMIT 1
) AS claim ON true
WHERE claim.entry_id IS NULL OR claim.fingerprint IS DISTINCT FROM sighted.fingerprint
