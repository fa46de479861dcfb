-- The objects that a window's entries refer to in one place, in the byte order of their keys, with what the store
-- answered when they were uploaded. WITH HOLD: the sorted rows go to a temporary file, so no snapshot stays open.
DECLARE {cursor} NO SCROLL CURSOR WITH HOLD FOR
SELECT entries.id, entries.group_digest, entries.content_hash, entries.generation, sent.object_bytes, sent.object_etag
FROM entries
JOIN destinations ON destinations.id = entries.destination_id
LEFT JOIN attempts AS sent ON sent.entry_id = entries.id AND sent.outcome IN ('accepted', 'received', 'vouched')
     AND entries.void_reason IS NULL
WHERE entries.window_id = {window_id} AND destinations.bucket = {bucket} AND destinations.prefix = {prefix}
ORDER BY entries.group_digest, entries.content_hash, entries.generation::text COLLATE "C", entries.id
