-- Guarantees: an entry exists from the same transaction that claimed its records and keeps their bodies.
INSERT INTO entries (id, window_id, run_id, opened_at, destination_id, generation, records_n, group_digest,
                     content_hash, idempotency_key, group_json)
SELECT opened.id, %(window_id)s, %(run_id)s, ledger_now(), opened.destination_id, %(generation)s, opened.records_n,
       opened.group_digest, opened.content_hash, opened.idempotency_key, opened.group_json
FROM unnest(%(ids)s::uuid[], %(destination_ids)s::int[], %(records_n)s::int[], %(group_digests)s::bytea[],
            %(content_hashes)s::bytea[], %(idempotency_keys)s::bytea[], %(group_jsons)s::text[])
     AS opened (id, destination_id, records_n, group_digest, content_hash, idempotency_key, group_json)
