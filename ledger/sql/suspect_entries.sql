-- Guarantees: an entry that was opened and never marked, but whose object is stored, counts as one whose send is unknown.
INSERT INTO open_attempts (entry_id, number, fence, marked_at, object_bytes, object_etag, error)
SELECT entries.id, 1, %(fence)s, ledger_now(), stored.object_bytes, stored.object_etag,
       'its object is stored, and what came after is not known'
FROM unnest(%(keys)s::bytea[], %(object_bytes)s::bigint[], %(object_etags)s::text[])
     AS stored (idempotency_key, object_bytes, object_etag)
JOIN entries ON entries.idempotency_key = stored.idempotency_key AND entries.void_reason IS NULL
WHERE entries.window_id = %(window_id)s
  AND EXISTS (SELECT 1 FROM payload_parts
              WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = entries.id)
  AND NOT EXISTS (SELECT 1 FROM all_attempts WHERE all_attempts.entry_id = entries.id)
ON CONFLICT DO NOTHING
