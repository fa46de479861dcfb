-- Guarantees: an entry is marked by one writer only, while it is unfinished and has no later attempt: whoever confirms
-- it at the same moment is waited for, and then it is left out.
WITH unfinished AS (
    SELECT entry_id FROM payload_parts
    WHERE window_id = %(window_id)s AND entry_id = ANY(%(ids)s::uuid[]) ORDER BY entry_id, part FOR UPDATE
)
INSERT INTO open_attempts (entry_id, number, fence, marked_at, object_bytes, object_etag)
SELECT wanted.id, wanted.attempts + 1, %(fence)s, ledger_now(), wanted.object_bytes, wanted.object_etag
FROM unnest(%(ids)s::uuid[], %(attempts)s::int[], %(object_bytes)s::bigint[], %(object_etags)s::text[])
     AS wanted (id, attempts, object_bytes, object_etag)
WHERE wanted.id IN (SELECT entry_id FROM unfinished)
  AND NOT EXISTS (SELECT 1 FROM all_attempts AS later
                  WHERE later.entry_id = wanted.id AND later.number > wanted.attempts)
ON CONFLICT DO NOTHING
RETURNING entry_id
