-- Guarantees: an occurrence is staged once a run; a second sight of it is left out.
INSERT INTO staged_records (run_id, booking_ns, record_id, group_key, order_key, body, fingerprint)
SELECT %(run_id)s, sighted.booking_ns, sighted.record_id, sighted.group_key, sighted.order_key, sighted.body,
       sighted.fingerprint
FROM unnest(%(booking_ns)s::bigint[], %(record_ids)s::bytea[], %(group_keys)s::bytea[], %(order_keys)s::bytea[],
            %(bodies)s::bytea[], %(fingerprints)s::bigint[])
     AS sighted (booking_ns, record_id, group_key, order_key, body, fingerprint)
ON CONFLICT DO NOTHING
