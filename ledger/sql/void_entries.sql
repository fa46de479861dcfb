-- Guarantees: an entry is void, its claims free and its payload gone in one transaction; one that has a try with one of
-- the given outcomes, or is finished, stays as it is.
WITH unfinished AS (
    SELECT entry_id FROM payload_parts
    WHERE window_id = %(window_id)s AND entry_id = ANY(%(ids)s::uuid[]) ORDER BY entry_id, part FOR UPDATE
), voided AS (
    UPDATE entries SET void_reason = %(reason)s
    WHERE entries.id IN (SELECT entry_id FROM unfinished) AND entries.void_reason IS NULL
      AND NOT EXISTS (SELECT 1 FROM all_attempts WHERE all_attempts.entry_id = entries.id
                      AND all_attempts.outcome = ANY(%(unless)s::text[]))
    RETURNING entries.id
), freed AS (
    DELETE FROM claims USING voided
    WHERE claims.pipeline_id = %(pipeline_id)s
      AND claims.booking_ns BETWEEN %(start_ns)s AND %(end_ns)s AND claims.entry_id = voided.id
)
DELETE FROM payload_parts USING voided
WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = voided.id
