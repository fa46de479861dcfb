-- The unfinished entries of a window in the order they were opened, a bounded number after the one given.
SELECT entries.id, entries.group_digest, entries.content_hash, entries.idempotency_key, entries.generation,
       entries.records_n, entries.group_json, entries.state, entries.attempts, entries.object_bytes,
       entries.object_etag, destinations.id, destinations.route, destinations.job, destinations.queue,
       destinations.bucket, destinations.prefix,
       EXISTS (SELECT 1 FROM attempts WHERE attempts.entry_id = entries.id AND attempts.outcome = 'unknown')
FROM (SELECT DISTINCT entry_id FROM payload_parts
      WHERE window_id = %(window_id)s AND entry_id > %(after)s ORDER BY entry_id LIMIT %(limit)s) AS unfinished
JOIN entries ON entries.id = unfinished.entry_id
JOIN destinations ON destinations.id = entries.destination_id
ORDER BY entries.id
