-- Guarantees: an entry is void, its claims free and its payload gone in one transaction; one that has a try with one of
-- the given outcomes stays as it is.
WITH voided AS (
    UPDATE entries SET state = 'void', live = NULL, void_reason = %(reason)s
    WHERE entries.id = ANY(%(ids)s::uuid[]) AND entries.state IN ('pending', 'sending')
      AND NOT EXISTS (SELECT 1 FROM attempts WHERE attempts.entry_id = entries.id
                      AND attempts.outcome = ANY(%(unless)s::text[]))
    RETURNING entries.id, entries.window_id
), freed AS (
    DELETE FROM claims USING voided
    WHERE claims.pipeline_id = %(pipeline_id)s
      AND claims.booking_ns BETWEEN %(start_ns)s AND %(end_ns)s AND claims.entry_id = voided.id
), spent AS (
    DELETE FROM payload_parts USING voided
    WHERE payload_parts.window_id = voided.window_id AND payload_parts.entry_id = voided.id
)
SELECT id FROM voided
