-- Guarantees: an entry is marked by one writer only (compare-and-set on state and attempts), with one attempt row each.
WITH marked AS (
    UPDATE entries SET state = 'sending', attempts = entries.attempts + 1,
                       object_bytes = wanted.object_bytes, object_etag = wanted.object_etag
    FROM unnest(%(ids)s::uuid[], %(attempts)s::int[], %(object_bytes)s::bigint[], %(object_etags)s::text[])
         AS wanted (id, attempts, object_bytes, object_etag)
    WHERE entries.id = wanted.id AND entries.attempts = wanted.attempts AND entries.state IN ('pending', 'sending')
    RETURNING entries.id, entries.attempts
)
INSERT INTO attempts (entry_id, number, fence, marked_at, outcome)
SELECT id, attempts, %(fence)s, ledger_now(), 'unknown' FROM marked
RETURNING entry_id
