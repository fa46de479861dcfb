-- Guarantees: one claim per (pipeline, occurrence, generation), whoever else tries; what comes back is ours.
-- In key order, so that two transactions that want the same occurrences wait for each other instead of deadlocking.
INSERT INTO claims (pipeline_id, booking_ns, record_id, generation, fingerprint, entry_id)
SELECT %(pipeline_id)s, wanted.booking_ns, wanted.record_id, %(generation)s, wanted.fingerprint,
       (%(entry_ids)s::uuid[])[wanted.entry_no]
FROM unnest(%(booking_ns)s::bigint[], %(record_ids)s::bytea[], %(fingerprints)s::bigint[], %(entry_nos)s::int[])
     AS wanted (booking_ns, record_id, fingerprint, entry_no)
ORDER BY wanted.booking_ns, wanted.record_id
ON CONFLICT DO NOTHING
RETURNING booking_ns, record_id
