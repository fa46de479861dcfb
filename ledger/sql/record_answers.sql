-- Guarantees: what is proven of an attempt is kept by its id, whoever holds the window by now; an accepted attempt
-- confirms its entry once, and only then its payload leaves the ledger. Repeating it changes nothing.
WITH answered AS (
    UPDATE attempts SET outcome = answer.outcome, message_id = answer.message_id, error = answer.error,
                        answered_at = ledger_now()
    FROM unnest(%(entry_ids)s::uuid[], %(numbers)s::int[], %(outcomes)s::text[], %(message_ids)s::text[],
                %(errors)s::text[]) AS answer (entry_id, number, outcome, message_id, error)
    WHERE attempts.entry_id = answer.entry_id AND attempts.number = answer.number AND attempts.outcome = 'unknown'
    RETURNING attempts.entry_id, attempts.outcome
), confirmed AS (
    UPDATE entries SET state = 'confirmed', confirmed_at = ledger_now()
    FROM answered
    WHERE entries.id = answered.entry_id AND answered.outcome = 'accepted' AND entries.state = 'sending'
    RETURNING entries.id, entries.window_id
), spent AS (
    DELETE FROM payload_parts USING confirmed
    WHERE payload_parts.window_id = confirmed.window_id AND payload_parts.entry_id = confirmed.id
)
SELECT id FROM confirmed
