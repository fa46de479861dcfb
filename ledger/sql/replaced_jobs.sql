-- The jobs that hold an occurrence which this run (or any) sends again, other than its own: the state of their receipt, and whether
-- they owe nothing any more, because each of their records is sent again, or was before, or is no longer due.
WITH mine AS MATERIALIZED (
    SELECT booking_ns, record_id, generation FROM claims
    WHERE pipeline_id = %(pipeline_id)s AND booking_ns BETWEEN %(start_ns)s AND %(end_ns)s
      AND entry_id IN (SELECT id FROM entries
                       WHERE window_id = %(window_id)s AND generation > 0 AND (run_id = %(run_id)s OR %(of_any_run)s))
), replaced AS MATERIALIZED (
    SELECT DISTINCT earlier.entry_id
    FROM mine
    JOIN claims AS earlier ON earlier.booking_ns = mine.booking_ns AND earlier.record_id = mine.record_id
         AND earlier.pipeline_id = %(pipeline_id)s AND earlier.generation < mine.generation
), owing AS MATERIALIZED (
    SELECT DISTINCT held.entry_id
    FROM claims AS held
    WHERE held.pipeline_id = %(pipeline_id)s
      AND held.booking_ns BETWEEN %(start_ns)s - %(hour_ns)s AND %(end_ns)s + %(hour_ns)s
      AND held.entry_id IN (SELECT entry_id FROM replaced)
      AND NOT EXISTS (SELECT 1 FROM claims AS later
                      WHERE later.booking_ns = held.booking_ns AND later.record_id = held.record_id
                        AND later.pipeline_id = held.pipeline_id AND later.generation > held.generation)
      AND NOT EXISTS (SELECT 1 FROM gathered
                      WHERE gathered.booking_ns = held.booking_ns AND gathered.record_id = held.record_id
                        AND NOT gathered.wanted)
)
SELECT entries.id, entries.window_id, entries.idempotency_key, owing.entry_id IS NOT NULL AS owes
FROM replaced
JOIN entries ON entries.id = replaced.entry_id
LEFT JOIN owing ON owing.entry_id = replaced.entry_id
