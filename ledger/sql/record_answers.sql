-- Guarantees: what is proven of an attempt is kept by its id, whoever holds the window by now; an accepted attempt
-- confirms its entry once, and only then its payload leaves the ledger. Repeating it changes nothing.
WITH answer AS (
    SELECT * FROM unnest(%(entry_ids)s::uuid[], %(numbers)s::int[], %(outcomes)s::text[], %(message_ids)s::text[],
                         %(errors)s::text[]) AS given (entry_id, number, outcome, message_id, error)
), unproven AS (
    UPDATE open_attempts SET error = answer.error FROM answer
    WHERE open_attempts.entry_id = answer.entry_id AND open_attempts.number = answer.number
      AND answer.outcome = 'unknown'
), proven AS (
    DELETE FROM open_attempts USING answer
    WHERE open_attempts.entry_id = answer.entry_id AND open_attempts.number = answer.number
      AND answer.outcome <> 'unknown'
    RETURNING open_attempts.*, answer.outcome, answer.message_id, answer.error AS reason
), kept AS (
    INSERT INTO attempts (entry_id, number, fence, marked_at, answered_at, outcome, object_bytes, object_etag,
                          message_id, error)
    SELECT entry_id, number, fence, marked_at, ledger_now(), outcome, object_bytes, object_etag, message_id, reason
    FROM proven
)
DELETE FROM payload_parts USING proven
WHERE payload_parts.window_id = %(window_id)s AND payload_parts.entry_id = proven.entry_id
  AND proven.outcome = 'accepted'
