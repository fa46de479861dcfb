-- Guarantees: an entry whose send is unknown, but whose job a consumer has taken up, is confirmed without another send.
-- A receipt that no worker ever claimed was made by a redo, and proves nothing.
WITH taken AS (
    SELECT DISTINCT ON (open_attempts.entry_id) open_attempts.*
    FROM open_attempts
    JOIN entries ON entries.id = open_attempts.entry_id
    JOIN receipts ON receipts.pipeline_id = %(pipeline_id)s AND receipts.idempotency_key = entries.idempotency_key
         AND receipts.attempts > 0
    WHERE entries.window_id = %(window_id)s AND entries.void_reason IS NULL
      AND EXISTS (SELECT 1 FROM payload_parts
                  WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = entries.id)
    ORDER BY open_attempts.entry_id, open_attempts.number DESC
), proven AS (
    DELETE FROM open_attempts USING taken
    WHERE open_attempts.entry_id = taken.entry_id AND open_attempts.number = taken.number
    RETURNING open_attempts.*
), kept AS (
    INSERT INTO attempts (entry_id, number, fence, marked_at, answered_at, outcome, object_bytes, object_etag, error)
    SELECT entry_id, number, fence, marked_at, ledger_now(), 'received', object_bytes, object_etag, error FROM proven
), spent AS (
    DELETE FROM payload_parts USING proven
    WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = proven.entry_id
)
SELECT entry_id FROM proven
