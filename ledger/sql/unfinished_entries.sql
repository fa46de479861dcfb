-- The unfinished entries of a window in the order they were opened, a bounded number after the one given; only those
-- that nobody has opened or marked for so long.
SELECT entries.id, entries.group_digest, entries.content_hash, entries.idempotency_key, entries.generation,
       entries.records_n, entries.group_json, destinations.id, destinations.route, destinations.job,
       destinations.queue, destinations.bucket, destinations.prefix,
       coalesce((SELECT max(number) FROM all_attempts WHERE all_attempts.entry_id = entries.id), 0),
       EXISTS (SELECT 1 FROM open_attempts WHERE open_attempts.entry_id = entries.id)
FROM (SELECT DISTINCT payload_parts.entry_id
      FROM payload_parts JOIN entries AS opened ON opened.id = payload_parts.entry_id
      WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id > %(after)s
        AND opened.opened_at <= ledger_now() - %(quiet)s::interval
        AND NOT EXISTS (SELECT 1 FROM all_attempts
                        WHERE all_attempts.entry_id = opened.id
                          AND all_attempts.marked_at > ledger_now() - %(quiet)s::interval)
      ORDER BY payload_parts.entry_id LIMIT %(limit)s) AS unfinished
JOIN entries ON entries.id = unfinished.entry_id
JOIN destinations ON destinations.id = entries.destination_id
ORDER BY entries.id
