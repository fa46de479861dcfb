-- How many of the jobs that are replaced a live consumer holds, and how many occurrences that are sent again have a job
-- that was worked to its end without its being seen.
SELECT (SELECT count(*) FROM replaced
        JOIN receipts ON receipts.pipeline_id = %(pipeline_id)s
             AND receipts.idempotency_key = replaced.idempotency_key
        WHERE receipts.state = 'in_work' AND receipts.expires_at > ledger_now()),
       (SELECT count(*) FROM gathered
        WHERE wanted AND NOT worked
          AND EXISTS (SELECT 1 FROM claims
                      JOIN replaced ON replaced.entry_id = claims.entry_id
                      JOIN receipts ON receipts.pipeline_id = claims.pipeline_id
                           AND receipts.idempotency_key = replaced.idempotency_key
                      WHERE claims.booking_ns = gathered.booking_ns AND claims.record_id = gathered.record_id
                        AND claims.pipeline_id = %(pipeline_id)s AND receipts.state = 'completed'))
