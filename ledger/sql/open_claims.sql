-- Guarantees: one claim per (pipeline, occurrence, generation), whoever else tries; what comes back is ours.
-- In key order, so that two transactions that want the same occurrences wait for each other instead of deadlocking.
INSERT INTO claims (pipeline_id, booking_ns, record_id, generation, entry_id)
SELECT %(pipeline_id)s, wanted.booking_ns, wanted.record_id, %(generation)s,
       (%(entry_ids)s::uuid[])[wanted.entry_no]
FROM unnest(%(booking_ns)s::bigint[], %(record_ids)s::bytea[], %(entry_nos)s::int[])
     AS wanted (booking_ns, record_id, entry_no)
ORDER BY wanted.booking_ns, wanted.record_id
ON CONFLICT DO NOTHING
RETURNING booking_ns, record_id
