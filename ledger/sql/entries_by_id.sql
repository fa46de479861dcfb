-- Some entries, as they were promised, in the order they were opened.
SELECT entries.id, entries.group_digest, entries.content_hash, entries.idempotency_key, entries.generation,
       entries.records_n, entries.group_json, destinations.id, destinations.route, destinations.job,
       destinations.queue, destinations.bucket, destinations.prefix,
       coalesce((SELECT max(number) FROM all_attempts WHERE all_attempts.entry_id = entries.id), 0),
       EXISTS (SELECT 1 FROM open_attempts WHERE open_attempts.entry_id = entries.id)
FROM entries JOIN destinations ON destinations.id = entries.destination_id
WHERE entries.id = ANY(%(ids)s::uuid[])
ORDER BY entries.id
