-- Guarantees: an entry whose send is unknown is confirmed without another send, because a person says that it was sent.
WITH last AS (
    SELECT DISTINCT ON (open_attempts.entry_id) open_attempts.*
    FROM open_attempts
    JOIN entries ON entries.id = open_attempts.entry_id
    WHERE entries.window_id = %(window_id)s AND entries.void_reason IS NULL
      AND EXISTS (SELECT 1 FROM payload_parts
                  WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = entries.id)
    ORDER BY open_attempts.entry_id, open_attempts.number DESC
), vouched AS (
    DELETE FROM open_attempts USING last
    WHERE open_attempts.entry_id = last.entry_id AND open_attempts.number = last.number
    RETURNING open_attempts.*
), kept AS (
    INSERT INTO attempts (entry_id, number, fence, marked_at, answered_at, outcome, object_bytes, object_etag, error)
    SELECT entry_id, number, fence, marked_at, ledger_now(), 'vouched', object_bytes, object_etag, %(note)s FROM vouched
), spent AS (
    DELETE FROM payload_parts USING vouched
    WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = vouched.entry_id
)
SELECT entry_id FROM vouched
