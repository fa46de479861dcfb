-- Guarantees: when a queue refuses what was to replace a job, that job may be worked again; not one of which another record
-- has been sent again in the meantime. To be run before the refused entries become void.
WITH refused AS MATERIALIZED (
    SELECT id FROM entries
    WHERE id = ANY(%(ids)s::uuid[]) AND generation > 0 AND void_reason IS NULL
      AND NOT EXISTS (SELECT 1 FROM attempts WHERE attempts.entry_id = entries.id AND attempts.outcome = 'accepted')
), mine AS MATERIALIZED (
    SELECT claims.booking_ns, claims.record_id, claims.generation
    FROM claims JOIN refused ON refused.id = claims.entry_id
    WHERE claims.pipeline_id = %(pipeline_id)s AND claims.booking_ns BETWEEN %(start_ns)s AND %(end_ns)s
), before AS MATERIALIZED (
    SELECT DISTINCT earlier.entry_id
    FROM mine
    CROSS JOIN LATERAL (SELECT entry_id FROM claims
                        WHERE claims.booking_ns = mine.booking_ns AND claims.record_id = mine.record_id
                          AND claims.pipeline_id = %(pipeline_id)s AND claims.generation < mine.generation
                        ORDER BY claims.generation DESC LIMIT 1) AS earlier
), gone AS MATERIALIZED (
    SELECT DISTINCT held.entry_id
    FROM claims AS held
    JOIN claims AS later ON later.booking_ns = held.booking_ns AND later.record_id = held.record_id
         AND later.pipeline_id = held.pipeline_id AND later.generation > held.generation
    WHERE held.pipeline_id = %(pipeline_id)s AND held.booking_ns BETWEEN %(start_ns)s AND %(end_ns)s
      AND held.entry_id IN (SELECT entry_id FROM before) AND later.entry_id NOT IN (SELECT id FROM refused)
), owed AS MATERIALIZED (
    SELECT entries.idempotency_key FROM before JOIN entries ON entries.id = before.entry_id
    WHERE before.entry_id NOT IN (SELECT entry_id FROM gone)
), forgotten AS (
    DELETE FROM receipts USING owed
    WHERE receipts.pipeline_id = %(pipeline_id)s AND receipts.idempotency_key = owed.idempotency_key
      AND receipts.state = 'superseded' AND receipts.attempts = 0
)
UPDATE receipts SET state = 'failed', reason = 'what was to replace it was refused by its queue'
FROM owed
WHERE receipts.pipeline_id = %(pipeline_id)s AND receipts.idempotency_key = owed.idempotency_key
  AND receipts.state = 'superseded' AND receipts.attempts > 0
